"""What mypy and pyright see of a plugin that somebody else writes: a misspelt hook, a wrong argument, an option of another type."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from lightloop import Hooks
from lightloop.cli.new_plugin import new_plugin

ROOT = Path(__file__).parent.parent.parent
HEAD = """
from __future__ import annotations
from collections.abc import Generator
from typing import Any
from typing_extensions import override
from lightloop import Loop, Plugin, Trainer, hookimpl, option
"""
RIGHT = (
    HEAD
    + """
class Mine(Plugin):
    name = "mine"
    size: int = option(1, "How much.")
    ratio: float | None = option(None, "How much of it.")

    @override
    @hookimpl
    def before_step(self, loop: Loop) -> None:
        loop.skip_step("none")

    @hookimpl
    def on_error(self, error: BaseException) -> None:
        pass

    @override
    @hookimpl(wrapper=True)
    def prepare_loader(self, stage: str) -> Generator[None, Any, Any]:
        return (yield)

    @hookimpl(optionalhook=True)
    def before_tea(self, loop: Loop, cups: int) -> None:
        pass

class Below(Mine):
    name = "below"

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        super().before_step(loop)

Mine(size=2, ratio=0.5)
Below(size=2)
Trainer([Mine(), "ema", Below], max_epochs=3)
"""
)
MINE = "class Mine(Plugin):\n    name = 'mine'\n"


class Fault(NamedTuple):
    """A source with a fault, and how the errors of each checker begin."""

    source: str
    mypy: tuple[str, ...]
    pyright: tuple[str, ...]


WRONG = {
    "misspelt": Fault(
        MINE + "    @override\n    @hookimpl\n    def before_stp(self, loop: Loop) -> None: ...\n",
        (
            'There is no hook "before_stp"; did you mean "before_step"?',
            'Method "before_stp" is marked as an override, but no base method was found with this name',
        ),
        ('Method "before_stp" is marked as override, but no base method of same name is present',),
    ),
    # Without the mark, pyright takes it for a method of the plugin's own.
    "misspelt_and_not_marked": Fault(
        MINE + "    @hookimpl\n    def before_stp(self, loop: Loop) -> None: ...\n",
        ('There is no hook "before_stp"; did you mean "before_step"?',),
        (),
    ),
    "misspelt_in_a_wrapper": Fault(
        MINE
        + "    @override\n    @hookimpl(wrapper=True)\n    def forwards(self, loop: Loop) -> Generator[None, Any, Any]:\n"
        "        return (yield)\n",
        (
            'There is no hook "forwards"; did you mean "forward"?',
            'Method "forwards" is marked as an override, but no base method was found with this name',
        ),
        ('Method "forwards" is marked as override, but no base method of same name is present',),
    ),
    "misspelt_below": Fault(
        "class Base(Plugin):\n    pass\nclass Mine(Base):\n    name = 'mine'\n    @override\n    @hookimpl\n"
        "    def after_fits(self, loop: Loop) -> None: ...\n",
        (
            'There is no hook "after_fits"; did you mean "after_fit"?',
            'Method "after_fits" is marked as an override, but no base method was found with this name',
        ),
        ('Method "after_fits" is marked as override, but no base method of same name is present',),
    ),
    "argument": Fault(
        MINE + "    @hookimpl\n    def before_step(self, loop: Loop, gradients: Any) -> None: ...\n",
        ('Hook "before_step" has no argument "gradients"; it has loop',),
        ('"before_step" overrides symbol of same name in class "Implementations"',),
    ),
    "name_of_an_argument": Fault(
        MINE + "    @hookimpl\n    def log_metrics(self, loop: Loop, values: Any) -> None: ...\n",
        ('Hook "log_metrics" has no argument "values"; it has loop, metrics, step',),
        ('"log_metrics" overrides symbol of same name in class "Implementations"',),
    ),
    "type_of_an_argument": Fault(
        MINE + "    @hookimpl\n    def epoch_steps(self, epoch: str) -> None: ...\n",
        (),  # without its first argument a method is compared with any others
        ('"epoch_steps" overrides symbol of same name in class "Implementations"',),
    ),
    "answer": Fault(
        MINE + "    @hookimpl\n    def hold_step(self, loop: Loop) -> str:\n        return 'no'\n",
        ('Signature of "hold_step" incompatible with supertype "lightloop.hooktypes.Implementations"',),
        ('"hold_step" overrides symbol of same name in class "Implementations"',),
    ),
    "option": Fault(
        MINE + "    size: int = option(1, 'How much.')\nMine(size='large')\n",
        ('Argument "size" to "Mine" has incompatible type "str"; expected "int"',),
        ('Argument of type "Literal[\'large\']" cannot be assigned to parameter "size" of type "int"',),
    ),
    "no_option": Fault(
        MINE + "    size: int = option(1, 'How much.')\nMine(sise=1)\n",
        ('Unexpected keyword argument "sise" for "Mine"',),
        ('No parameter named "sise"',),
    ),
    "call_of_a_hook": Fault(
        "def call(loop: Loop) -> None:\n    loop.hook.before_stp(loop=loop)\n",
        ('"HookRelay" has no attribute "before_stp"',),
        ('Cannot access attribute "before_stp" for class "HookRelay"',),
    ),
    "argument_of_a_call": Fault(
        "def call(loop: Loop) -> None:\n    loop.hook.before_step(lop=loop)\n",
        ('Unexpected keyword argument "lop" for "before_step" of "Hooks"',),
        ('Argument missing for parameter "loop"', 'No parameter named "lop"'),
    ),
    "value_of_an_option": Fault(
        "Trainer(max_epochs='three')\n",
        ('Argument "max_epochs" to "Trainer" has incompatible type "str"; expected "int | None"',),
        ('Argument of type "Literal[\'three\']" cannot be assigned to parameter "max_epochs" of type "int | None"',),
    ),
    "no_entry": Fault(
        "Trainer([3])\n",
        ("List item 0 has incompatible type",),
        ('Argument of type "list[int]" cannot be assigned to parameter "plugins"',),
    ),
    "declaration": Fault(
        MINE + "    on_failure = 'ignore'\n",
        ("Incompatible types in assignment",),
        ("Type \"Literal['ignore']\" is not assignable to declared type \"Literal['stop', 'disable']\"",),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has the sources: with a fault each, without any, the template's, and those of examples/third_party."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT)
    for name, fault in WRONG.items():
        (folder / f"{name}.py").write_text(HEAD + fault.source)
    new_plugin(["template", str(folder / "new")])
    others = [folder / "new" / "lightloop_template.py", *ROOT.glob("examples/third_party/lightloop-*/lightloop_*.py")]
    assert len(others) >= 5
    for path in others:
        (folder / path.name).write_text(path.read_text())
    return folder


@pytest.fixture(scope="module")
def mypy(folder):
    """The errors of each file, from one run of mypy."""
    from mypy import api

    config = folder / "mypy.ini"
    config.write_text(
        f"[mypy]\nplugins = lightloop.testing.mypy_plugin\nmypy_path = {ROOT}:{ROOT / 'plugins'}\nfollow_imports = silent\n"
        "disallow_untyped_defs = True\ncheck_untyped_defs = True\nignore_missing_imports = True\n"
        "[mypy-torch.*,numpy.*]\nfollow_imports = skip\n"  # it takes a minute to read them; pyright does, and so does make types
    )
    cache = ROOT / ".mypy_cache" / "typing"
    files = sorted(map(str, folder.glob("*.py")))
    out, err, _ = api.run(["--config-file", str(config), "--cache-dir", str(cache), "--no-error-summary", *files])
    assert not err, err
    found = {}
    for path, message in re.findall(r"^(\S+?)\.py:\d+: error: (.*)$", out, flags=re.MULTILINE):
        found.setdefault(Path(path).name, []).append(message)
    return found


@pytest.fixture(scope="module")
def pyright(folder):
    """The errors of each file, from one run of pyright, in the edition that brings its Node along."""
    config = folder / "pyrightconfig.json"
    settings = {
        "typeCheckingMode": "standard",
        "include": ["*.py"],
        "extraPaths": [str(ROOT), str(ROOT / "plugins")],
        "reportMissingImports": False,
    }
    config.write_text(json.dumps(settings))
    program = Path(sys.executable).with_name("basedpyright")
    done = subprocess.run(
        [program, "--outputjson", "--pythonpath", sys.executable, "--project", config],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            found.setdefault(Path(each["file"]).stem, []).append(each["message"])
    return found


def assert_begin(found, expected):
    assert len(found) == len(expected), found
    for message, start in zip(sorted(found), sorted(expected), strict=True):
        assert message.startswith(start)


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_plugin_without_faults_has_no_errors(request, folder, checker):
    found = request.getfixturevalue(checker)
    assert {name: errors for name, errors in found.items() if name not in WRONG} == {}


@pytest.mark.parametrize("name", WRONG)
def test_mypy_sees_a_fault_before_anything_runs(mypy, name):
    assert_begin(mypy.get(name, []), WRONG[name].mypy)


@pytest.mark.parametrize("name", WRONG)
def test_pyright_sees_a_fault_before_anything_runs(pyright, name):
    assert_begin(pyright.get(name, []), WRONG[name].pyright)


def test_each_fault_is_seen_by_one_of_them_and_the_usual_ones_by_both():
    assert [name for name, fault in WRONG.items() if not (fault.mypy or fault.pyright)] == []
    by_both = {name for name, fault in WRONG.items() if fault.mypy and fault.pyright}
    assert {"misspelt", "argument", "option"} <= by_both


def test_the_types_of_hooks_are_those_of_the_specifications():
    tree = ast.parse((ROOT / "lightloop" / "hooktypes.pyi").read_text())
    (listed,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    (forms,) = [node for node in tree.body if isinstance(node, ast.If)]
    takes = {
        form.name: [(arg.arg, ast.unparse(arg.annotation)) for arg in form.body[0].args.kwonlyargs]
        for form in forms.body
        if isinstance(form, ast.ClassDef)
    }
    most = {  # the last form of an alias takes every argument
        alias.target.id: re.findall(r"(\w+)\[T\]", ast.unparse(alias.value))
        for alias in forms.body
        if isinstance(alias, ast.AnnAssign)
    }
    typed = {}
    for each in listed.body[1:]:
        alias, answer = ast.unparse(each.annotation).split("[", 1)
        assert len(set(most[alias])) == 2 ** len(takes[most[alias][-1]])
        typed[each.target.id] = (takes[most[alias][-1]], answer.removesuffix("]"))
    specified = {}
    for name, spec in vars(Hooks).items():
        if hasattr(spec, "lightloop_spec"):
            signature = inspect.signature(spec)
            arguments = [(each.name, each.annotation) for each in list(signature.parameters.values())[1:]]
            specified[name] = (arguments, signature.return_annotation)
    assert typed == specified


def test_the_options_that_type_checkers_know_are_those_of_the_built_in_plugins():
    """After a change of an option, run python scripts/options_stub.py."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "options_stub.py", "--check"], check=False)
    assert done.returncode == 0
