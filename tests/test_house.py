"""The house keeps its own rules: who imports whom, what can be left out, and what may not be named."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightloop.host.options import OPTION, options_of
from lightloop.toolkit import ROLES, discover

ROOT = Path(__file__).parent.parent
OURS = {name: found for name, found in discover().items() if found.distribution == "lightloop"}


def test_the_import_contracts_hold():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.processes
def test_the_core_never_imports_a_plugin():
    names = sorted(path.stem for path in (ROOT / "lightloop").glob("*.py") if path.stem != "__main__")
    program = "import importlib, sys\n" + "".join(f"importlib.import_module('lightloop.{name}')\n" for name in names)
    program += "import lightloop.testing\nprint([name for name in sys.modules if name.startswith('lightloop_plugins')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["lightloop", "plugins/lightloop_plugins"])
def test_warnings_point_at_the_users_line(folder):
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "warning.py" else ():
            raw = isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warnings.warn_explicit")
            if raw or (isinstance(node, ast.ImportFrom) and node.module == "warnings"):
                found.append(f"{path}:{node.lineno}")
    assert not found, (
        "write warn(...) of lightloop, which finds that line, in place of warnings.warn(..., stacklevel=...)"
    )


def test_every_file_of_the_core_has_its_place_in_the_readme():
    listed = re.findall(r"`(\w+\.py)`", (ROOT / "lightloop" / "README.md").read_text())
    files = [path for folder in ("", "host") for path in (ROOT / "lightloop" / folder).glob("[!_]*.py")]
    assert sorted(listed) == sorted(path.name for path in files)


WITHOUT = """
import os, sys, traceback
import torch
from lightloop import Module, Trainer

class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch):
        loss = self.layer(batch).sum()
        self.log("loss", loss)
        return loss
    def validation_step(self, batch):
        self.log("val_loss", self.layer(batch).sum())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def fit_without(names):
    os.environ["LIGHTLOOP_WITHOUT"] = names
    data = [torch.ones(4, 2), torch.ones(4, 2)]
    assert Trainer().fit(Net(), data, data).global_step == 2
    assert not {plugin.name for plugin in Trainer().plugins} & set(names.split(","))

fit_without(",".join(sys.argv[1:]))
assert not [name for name in sys.modules if name.startswith("lightloop_plugins.")]
for name in sys.argv[1:]:
    try:
        fit_without(name)
    except BaseException:
        traceback.print_exc()
        print("fails without", name)
"""


@pytest.mark.processes
def test_each_plugin_can_be_left_out_and_then_is_not_imported():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *OURS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    failures = [line for line in done.stdout.splitlines() if line.startswith("fails without")]
    assert (done.returncode, failures) == (0, []), done.stderr[-3000:]


@pytest.mark.parametrize("name", OURS)
def test_a_plugin_is_what_its_entry_point_says(name):
    found = OURS[name]
    assert found.plugin is not None, found.problem
    assert found.plugin.name == name
    assert found.plugin.__module__ == found.value.partition(":")[0]
    assert found.plugin.__doc__
    assert not found.plugin.__doc__.startswith(f"{found.plugin.__name__}("), "dataclass's own is no docstring"


@pytest.mark.parametrize("name", OURS)
def test_every_option_is_explained_in_a_sentence(name):
    found = OURS[name]
    assert found.plugin is not None, found.problem
    for keyword, field in options_of(found.plugin).items():
        assert re.fullmatch(r"[^a-z].*[.]", field.metadata[OPTION].help, flags=re.DOTALL), keyword


# Written so that this file does not hold them itself.
FORBIDDEN = ["/wo" + "rk/", "/ro" + "ot/", "pypi" + r"\.", "python" + "hosted", "index" + "-url", "CASES" + r"\.md"]
FORBIDDEN += ["SEMANTICS" + r"\.md", "shared" + "/[A-Z]"]


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_nothing_names_a_machine_or_a_registry():
    pattern = re.compile("|".join(FORBIDDEN))
    found = []
    for path in files():
        if not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


DECLARATIONS = {"before", "after", "requires", "conflicts", "replaces"}


def lists_of_names(tree, known):
    """Literals with the names of two or more plugins, but for the declarations of classes, each with its line."""
    declared = {
        id(part)
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef)
        for line in kind.body
        if isinstance(line, (ast.Assign, ast.AnnAssign))
        if {target.id for target in (line.targets if isinstance(line, ast.Assign) else [line.target])} & DECLARATIONS
        for part in ast.walk(line)
    }
    for node in ast.walk(tree):
        names = {
            part.value for part in getattr(node, "elts", ()) if isinstance(part, ast.Constant) and part.value in known
        }
        if len(names) > 1 and id(node) not in declared:
            yield node.lineno, names


def test_no_plugin_lists_others_by_name_but_in_its_declarations():
    names = OURS.keys() - {"cpu", "cuda", "mps", "xla"}  # which torch calls its devices
    assert list(lists_of_names(ast.parse("class A:\n  x = ('ema', 'clip')\n  before = ('ema', 'clip')"), names)) == [
        (2, {"ema", "clip"})
    ]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(sorted(listed))}"
        for path in sorted((ROOT / "plugins").rglob("*.py"))
        for line, listed in lists_of_names(ast.parse(path.read_text()), names)
    ]
    assert found == []


def test_each_tag_of_ours_is_a_role_or_a_kind_that_is_documented():
    tags = {tag for found in OURS.values() if found.plugin for tag in found.plugin.tags}
    assert tags - ROLES.keys() == {"logger", "spmd", "validation"} & tags
    assert ROLES.keys() - tags == set()
    page = (ROOT / "docs/explain/order.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page.partition("## Roles")[2], flags=re.MULTILINE))
    assert rows == ROLES
