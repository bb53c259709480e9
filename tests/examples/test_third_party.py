"""Plugins of others: built as wheels, installed by pip into a fresh environment, used there; and broken ones beside them."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "third_party"
GOOD = ("lightloop-lora", "lightloop-noise", "lightloop-sam")
BROKEN = ("broken-import", "broken-name", "broken-hook", "broken-cycle")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q")

pytestmark = pytest.mark.processes


PROGRAM = """
import contextlib, io, json, sys
from lightloop.cli.front import main
results = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(command)
    results.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(results))
"""

BUILD = """
import os, sys
from setuptools import build_meta
wheels, *sources = sys.argv[1:]
sys.argv = sys.argv[:1]
for source in sources:
    os.chdir(source)
    build_meta.build_wheel(wheels)
"""
"""Builds wheels as pip would, but in one process."""


class Environment:
    """A fresh environment, in which what is installed here can be imported, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        self.python = folder / "env" / "bin" / "python"
        (site,) = (folder / "env").glob("lib/python*/site-packages")
        (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")

    def run(self, *arguments, cwd=None, **environ):
        """Exit code, output and errors of its Python."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LIGHTLOOP", "PYTEST"))
        }
        done = subprocess.run(
            [self.python, *arguments],
            cwd=cwd or self.folder,
            env={**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    def lightloop(self, *commands, **options):
        """Exit code, output and errors of each of ``commands``, given in one process; of one alone, not in a list."""
        code, out, err = self.run("-c", PROGRAM, json.dumps(commands), **options)
        assert code == 0, err
        results = [tuple(result) for result in json.loads(out)]
        return results[0] if len(commands) == 1 else results

    def pip(self, *arguments, **options):
        code, out, err = self.run("-m", "pip", *arguments, *OFFLINE, **options)
        assert code == 0, out + err


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """One with the good distributions; the wheels of the broken ones are each unpacked in a folder, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("third_party")
    environment = Environment(folder)
    shutil.copytree(EXAMPLES, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    environment.pip("wheel", "-w", str(folder / "wheels"), *(str(folder / "source" / name) for name in GOOD))
    environment.pip("install", *(str(next((folder / "wheels").glob(f"{n.replace('-', '_')}-*.whl"))) for n in GOOD))
    broken = [str(folder / "source" / "broken" / name) for name in BROKEN]
    code, out, err = environment.run("-c", BUILD, str(folder / "wheels"), *broken)
    assert code == 0, out + err
    for name in BROKEN:
        (wheel,) = (folder / "wheels").glob(f"{name.replace('-', '_')}-*.whl")
        ZipFile(wheel).extractall(folder / name)
    return environment


def beside(environment, name):
    return {"PYTHONPATH": str(environment.folder / name)}


def test_it_is_listed_and_explained(environment):
    listed, explained = environment.lightloop(
        ["plugins", "noise"],
        ["explain", "--plugins", "-*", "--noise_eta", "0.1", "--gradient_clip_val", "1.0"],
    )
    assert (listed[0], listed[2]) == (0, "")
    assert listed[1].splitlines()[0] == "noise  lightloop-noise 1.0.0"
    assert "  live       on request\n" in listed[1]
    assert "before_step\n  1. clip\n  2. noise  [noise says after='clip']\n" in explained[1], explained


@pytest.mark.parametrize("name", GOOD)
def test_its_own_tests_pass(environment, name):
    project = environment.folder / "source" / name
    code, out, _ = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project, PYTHONWARNINGS="")
    assert code == 0, out


def test_discovery_can_be_turned_off_and_then_nothing_of_others_is_imported(environment):
    program = (
        "import os, sys\nfrom lightloop import Trainer\nTrainer()\nprint('lightloop_noise' in sys.modules)\n"
        "del os.environ['LIGHTLOOP_DISCOVER']\nTrainer()\nprint('lightloop_noise' in sys.modules)"
    )
    assert environment.run("-c", program, LIGHTLOOP_DISCOVER="0")[1] == "False\nTrue\n"


def test_one_that_cannot_be_imported_is_isolated(environment):
    listed, asked, doctor = environment.lightloop(
        ["plugins"], ["explain", "--plugins", "absent"], ["doctor"], **beside(environment, "broken-import")
    )
    problem = "cannot be imported: ModuleNotFoundError: No module named 'nonexistent_thing'"
    assert listed[0] == 0
    assert re.search(rf"^absent +broken-import 1\.0\.0 +no: it {problem}$", listed[1], flags=re.MULTILINE)
    assert re.search(
        r"^noise +lightloop-noise 1\.0\.0 +on request +before_fit, before_step$", listed[1], flags=re.MULTILINE
    )
    said = f"lightloop explain: plugin 'absent' of broken-import 1.0.0 was asked for; it {problem}\n"
    assert asked == (2, "", said)
    assert (doctor[0], doctor[1].splitlines()[-1]) == (1, f"  plugin 'absent' of broken-import 1.0.0: {problem}")


def test_two_of_one_name_are_refused(environment):
    assert environment.lightloop(["plugins"], **beside(environment, "broken-name")) == (
        2,
        "",
        "lightloop plugins: two distributions call a plugin 'noise': broken-name (broken_name:Noise) and lightloop-noise "
        "(lightloop_noise:Noise). Uninstall one of them, or set LIGHTLOOP_WITHOUT=noise to run without both\n",
    )
    without = {**beside(environment, "broken-name"), "LIGHTLOOP_WITHOUT": "noise"}
    assert environment.lightloop(["explain"], **without)[0] == 0


def test_a_hook_that_cannot_be_called_is_refused(environment):
    asked, other = environment.lightloop(
        ["explain", "--plugins", "crooked"],
        ["explain", "--plugins", "noise", "--noise_eta", "0.1"],
        **beside(environment, "broken-hook"),
    )
    assert asked == (
        2,
        "",
        "lightloop explain: plugin 'crooked' (broken_hook, broken-hook 1.0.0): hook 'before_step' has no argument 'gradients'; "
        "it has loop\n",
    )
    assert other[0] == 0


def test_an_order_that_cannot_be_is_refused(environment):
    both, one = environment.lightloop(
        ["explain", "--plugins", "hen,egg"], ["explain", "--plugins", "hen"], **beside(environment, "broken-cycle")
    )
    assert both == (
        2,
        "",
        "lightloop explain: the plugins ask for an order that cannot be: egg -> hen -> egg\n"
        "  egg runs before hen: egg says before='hen'\n"
        "  hen runs before egg: hen says before='egg'\n"
        "Take one of these away.\n",
    )
    assert one[0] == 0


RUN = """
from lightloop import Trainer
from lightloop.testing import Probe, probe_batches
print(Trainer(["-*", "steady"]).fit(Probe(), probe_batches(3)).metrics)
"""


def test_a_new_plugin_goes_from_the_template_to_a_run(environment):
    folder = environment.folder / "new"
    folder.mkdir()
    code, _, err = environment.lightloop(["new-plugin", "steady"], cwd=folder)
    assert (code, err) == (0, "")
    project = folder / "lightloop-steady"
    assert sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()) == [
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "lightloop_steady.py",
        "pyproject.toml",
        "tests/test_steady.py",
    ]
    edit(project / "lightloop_steady.py", "self.count)\n", "self.count * 2)\n")
    edit(project / "tests/test_steady.py", '["steady/batches"] == 6', '["steady/batches"] == 12')
    edit(project / "tests/test_steady.py", 'plugin = "steady"', 'plugin = "steady"\n    processes = 1')
    environment.pip("install", "-e", str(project))
    listed, explained = environment.lightloop(["plugins", "steady"], ["explain", "--plugins", "-*,steady"])
    assert listed[1].splitlines()[0] == "steady  lightloop-steady 0.1.0"
    assert "after_batch\n  1. steady\n" in explained[1]
    assert environment.run("-c", RUN)[1] == "{'steady/batches': 6.0}\n"
    code, out, _ = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project, PYTHONWARNINGS="")
    assert code == 0, out


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))
