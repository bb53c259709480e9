"""Every example is on the page of examples, and some test runs it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb"))
# The ones that are not started by a file of tests with their name in it.
BY_MAKE = {"digits.py"}  # make train, in CI


def test_the_page_lists_every_example():
    table = (ROOT / "docs" / "examples.md").read_text()
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)) == EXAMPLES


@pytest.mark.parametrize("name", sorted({*EXAMPLES} - BY_MAKE))
def test_some_test_runs_it(name):
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert any(re.search(rf"\b{re.escape(name)}\b", path.read_text(encoding="utf-8")) for path in tests)
