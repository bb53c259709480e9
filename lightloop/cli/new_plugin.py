"""``lightloop new-plugin``."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from lightloop.cli.front import Parser, UsageError

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "lightloop-{dashed}"
version = "0.1.0"
description = "A plugin for Lightloop."
requires-python = ">=3.11"
dependencies = ["lightloop>={major_minor}"]

[project.optional-dependencies]
dev = ["mypy", "pytest"]

[project.entry-points."lightloop.plugins"]
{name} = "lightloop_{module}:{kind}"

[tool.setuptools]
py-modules = ["lightloop_{module}"]

[tool.pytest.ini_options]
testpaths = ["tests"]
filterwarnings = ["error"]

[tool.mypy]
plugins = ["lightloop.testing.mypy_plugin"]
strict = true
files = ["lightloop_{module}.py"]
"""
PLUGIN = '''\
"""Say in a sentence what the plugin does."""

from __future__ import annotations

from lightloop import Loop, Plugin, hookimpl, option


class {kind}(Plugin):
    """Count the batches of a fit, and log how many there were."""

    name = "{name}"
    works_with = ">={major_minor}"
    tags = ("watches",)  # what it does in a run, by which others mean it: see lightloop.toolkit.ROLES
    state = ("count",)  # what a resumed run must have back

    every: int = option(1, "Log the count each so many batches; at least 1.")

    def validate(self) -> None:
        if self.every < 1:
            raise self.invalid("every", "at least 1")

    def reset(self) -> None:
        self.count = 0

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        self.count += 1
        if self.count % self.every == 0:
            loop.log("{name}/batches", self.count)
'''
TEST = """\
from lightloop import Trainer
from lightloop.testing import PluginContract
from lightloop_{module} import {kind}


class TestContract(PluginContract):
    plugin = "{name}"


def test_it_counts_batches(tiny_classifier, classification_data):
    plugin = {kind}(every=2)
    result = Trainer(["-*", plugin]).fit(tiny_classifier, classification_data)
    assert plugin.count == 6
    assert result.metrics["{name}/batches"] == 6
"""
CI = """\
name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        python: ["3.11", "3.12", "3.13"]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{{{ matrix.python }}}}
      - run: pip install -e '.[dev]'
      - run: pytest
      - run: mypy
      - run: lightloop check {name}
"""
README = """\
# lightloop-{dashed}

A plugin for Lightloop: `Trainer(["{name}"])`, or `--plugins {name}` on the command line.

```
pip install -e '.[dev]'
lightloop plugins {name}
pytest
```
"""
FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    "lightloop_{module}.py": PLUGIN,
    "tests/test_{module}.py": TEST,
    ".github/workflows/test.yml": CI,
    ".gitignore": "__pycache__/\n*.egg-info/\nbuild/\ndist/\n",
}


def new_plugin(arguments: list[str]) -> int:
    """Write a project that installs a plugin: the plugin, its entry point, tests that hold it to the contract, and CI."""
    parser = Parser("new-plugin", new_plugin)
    parser.add_argument("name", metavar="NAME", help="the plugin's name: small letters, digits and _")
    parser.add_argument("folder", metavar="DIR", nargs="?", help="where it is written; by default lightloop-NAME")
    said = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", said.name):
        raise UsageError(f"the name must be small letters, digits and _, and begin with a letter; it is {said.name!r}")
    dashed = said.name.replace("_", "-")
    folder = Path(said.folder or f"lightloop-{dashed}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already, and is no empty folder")
    words = {
        "name": said.name,
        "module": said.name,
        "dashed": dashed,
        "kind": "".join(part.capitalize() for part in said.name.split("_")),
        "major_minor": ".".join(version("lightloop").split(".")[:2]),
    }
    for name, text in FILES.items():
        path = folder / name.format(**words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**words), encoding="utf-8")
    print(f"{folder} is written. Next: cd {folder}, edit lightloop_{said.name}.py, pip install -e '.[dev]', pytest")
    return 0
