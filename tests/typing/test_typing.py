"""What mypy sees of a plugin that somebody else writes: a misspelt hook, a wrong argument, an option of another type."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HEAD = """
from __future__ import annotations
from typing import Any
from lightloop import Loop, Plugin, Trainer, hookimpl, option
"""
RIGHT = (
    HEAD
    + """
class Mine(Plugin):
    name = "mine"
    size: int = option(1, "How much.")
    ratio: float | None = option(None, "How much of it.")

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        loop.skip_step("none")

    @hookimpl(optionalhook=True)
    def before_tea(self, loop: Loop, cups: int) -> None:
        pass

class Below(Mine):
    name = "below"

Mine(size=2, ratio=0.5)
Below(size=2)
Trainer([Mine(), "ema", Below], max_epochs=3)
"""
)
WRONG = {
    "misspelt": (
        "class Mine(Plugin):\n    name = 'mine'\n    @hookimpl\n    def before_stp(self, loop: Loop) -> None: ...\n",
        'There is no hook "before_stp"; did you mean "before_step"?',
    ),
    "misspelt_in_a_wrapper": (
        "class Mine(Plugin):\n    name = 'mine'\n    @hookimpl(wrapper=True)\n    def forwards(self, loop: Loop) -> Any:\n        return (yield)\n",
        'There is no hook "forwards"; did you mean "forward"?',
    ),
    "misspelt_below": (
        "class Base(Plugin):\n    pass\nclass Mine(Base):\n    name = 'mine'\n    @hookimpl\n    def after_fits(self, loop: Loop) -> None: ...\n",
        'There is no hook "after_fits"; did you mean "after_fit"?',
    ),
    "argument": (
        "class Mine(Plugin):\n    name = 'mine'\n    @hookimpl\n    def before_step(self, loop: Loop, gradients: Any) -> None: ...\n",
        'Hook "before_step" has no argument "gradients"; it has loop',
    ),
    "option": (
        "class Mine(Plugin):\n    name = 'mine'\n    size: int = option(1, 'How much.')\nMine(size='large')\n",
        'Argument "size" to "Mine" has incompatible type "str"; expected "int"',
    ),
    "no_option": (
        "class Mine(Plugin):\n    name = 'mine'\n    size: int = option(1, 'How much.')\nMine(sise=1)\n",
        'Unexpected keyword argument "sise" for "Mine"',
    ),
    "call_of_a_hook": (
        "def call(loop: Loop) -> None:\n    loop.hook.before_stp(loop=loop)\n",
        '"Relay" has no attribute "before_stp"',
    ),
    "argument_of_a_call": (
        "def call(loop: Loop) -> None:\n    loop.hook.before_step(lop=loop)\n",
        'Unexpected keyword argument "lop" for "before_step" of "Hooks"',
    ),
    "no_entry": ("Trainer([3])\n", "List item 0 has incompatible type"),
    "declaration": (
        "class Mine(Plugin):\n    name = 'mine'\n    on_failure = 'ignore'\n",
        "Incompatible types in assignment",
    ),
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The errors of each file, from one run of mypy."""
    from mypy import api

    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT)
    for name, (source, _) in WRONG.items():
        (folder / f"{name}.py").write_text(HEAD + source)
    config = folder / "mypy.ini"
    config.write_text(
        f"[mypy]\nplugins = lightloop.testing.mypy_plugin\nmypy_path = {ROOT}:{ROOT / 'plugins'}\nfollow_imports = silent\n"
        "disallow_untyped_defs = True\ncheck_untyped_defs = True\n"
    )
    cache = ROOT / ".mypy_cache" / "typing"  # of torch, which takes a minute to read
    files = sorted(map(str, folder.glob("*.py")))
    out, err, _ = api.run(["--config-file", str(config), "--cache-dir", str(cache), "--no-error-summary", *files])
    assert not err, err
    found = {}
    for path, message in re.findall(r"^(\S+?)\.py:\d+: error: (.*)$", out, flags=re.MULTILINE):
        found.setdefault(Path(path).name, []).append(message)
    return found


def test_a_plugin_without_faults_has_no_errors(errors):
    assert errors.get("right") is None


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_seen_before_anything_runs(errors, name):
    assert len(errors.get(name, [])) == 1, errors
    assert errors[name][0].startswith(WRONG[name][1])
