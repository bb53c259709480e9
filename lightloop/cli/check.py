"""``lightloop check``."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from lightloop.cli.front import Parser, UsageError
from lightloop.cli.options import read_options
from lightloop.host.discovery import discover
from lightloop.host.nearest import nearest
from lightloop.host.options import options_of

TEST = """import json
from lightloop.testing import PluginContract

class Test(PluginContract):
    plugin = {name!r}
    options = json.loads({options!r})
    others = {others!r}
    trainer = json.loads({trainer!r})
    processes = {processes!r}
    boundaries = {boundaries!r}
    unsteady = {unsteady!r}
"""


def check(arguments: list[str]) -> int:
    """Hold an installed plugin to the contract for plugins: lightloop check NAME [--OPTION VALUE ...]."""
    parser = Parser("check", check)
    parser.add_argument("name", metavar="NAME", help="the plugin")
    parser.add_argument("--processes", type=int, default=2, help="in how many it is run together; 1 leaves that out")
    parser.add_argument("--boundaries", type=int, default=3, metavar="N", help="at how many places between its batches, of "
        "six, a run is killed and resumed, and its whole state compared; 0 leaves that out")  # fmt: skip
    parser.add_argument("--unsteady", action="append", default=[], metavar="PATTERN", help="what no two runs have in common, "
        "such as plugins.NAME.seconds; may be given again")  # fmt: skip
    parser.epilog = "Options are the Trainer's, and should make the plugin do what it is for; --plugins adds others."
    said, rest = parser.parse_known_args(arguments)
    others, options = read_options(rest)
    found = discover()
    if said.name not in found:
        raise UsageError(f"there is no plugin {said.name!r}.{nearest(said.name, found)}")
    plugin = found[said.name].plugin
    if plugin is None:
        print(f"plugin {found[said.name]} {found[said.name].problem}", file=sys.stderr)
        return 1
    if importlib.util.find_spec("pytest") is None:
        raise UsageError("the contract is run by pytest: pip install pytest")
    fields = options_of(plugin)
    own = {fields[keyword].name: value for keyword, value in options.items() if keyword in fields}
    rest_of = {keyword: value for keyword, value in options.items() if keyword not in fields}
    values = {"options": json.dumps(own), "others": others, "trainer": json.dumps(rest_of)}
    resumed = {"boundaries": said.boundaries, "unsteady": tuple(said.unsteady)}
    done = _run_test(TEST.format(name=said.name, processes=said.processes, **values, **resumed))
    print(_report(done.stdout) or done.stdout + done.stderr)
    return 0 if done.returncode == 0 else 1


def _run_test(source: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test_contract.py"
        test.write_text(source, encoding="utf-8")
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rfE", "--tb=line", "--no-header"]
        return subprocess.run(
            [*pytest, "-c", os.devnull, f"--rootdir={folder}", str(test)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )


def _report(output: str) -> str:
    """The failures, each with its reason, and the count."""
    lines = output.splitlines()
    told = (re.match(r"\S+:\d+: (?:AssertionError: |Failed: )?(.+)", line) for line in lines)
    said = dict.fromkeys(found[1] for found in told if found)
    failed = [
        line.partition("::Test::")[2].partition(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))
    ]
    counted = [line for line in lines if " passed" in line or " failed" in line]
    return "\n".join([*(f"FAILED {name}" for name in failed), *(f"  {reason}" for reason in said), *counted[-1:]])
