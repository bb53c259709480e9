"""What the tables of migration and the README call ours is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lightloop import Hooks, Loop, Trainer
from lightloop.host.keywords import known_options
from lightloop.toolkit import discover

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs" / "tutorials" / "from-lightning.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    ROOT / "README.md",
]


def trainers():
    for page in PAGES:
        for code in re.findall(r"`(Trainer\([^`]*\))`", page.read_text()):
            yield pytest.param(code, id=f"{page.stem}: {code}")


@pytest.mark.parametrize("code", dict.fromkeys(trainers()))
def test_each_keyword_that_a_page_gives_the_trainer_is_one(code):
    if "..." in code:
        pytest.skip("a form, not a call")
    call = ast.parse(code).body[0].value
    call = call if isinstance(call.func, ast.Name) else call.func.value
    installed = discover().values()
    absent = [f"{found.name} is left out by {found.left_out_by}" for found in installed if found.left_out_by]
    kinds = {name for found in installed if found.plugin for name in found.plugin.names()}
    for keyword in call.keywords:
        assert keyword.arg == "plugins" or keyword.arg in {*known_options(discover()), *kinds}, absent
        if not isinstance(keyword.value, ast.Name):
            ast.literal_eval(keyword.value)


def test_each_attribute_of_the_loop_that_a_page_names_is_there():
    from lightloop.testing import TinyClassifier, classification_batches

    trainer = Trainer(["-*"])
    trainer.fit(TinyClassifier(), classification_batches(1))
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"`loop\.(\w+)", text):
            assert hasattr(trainer.loop, name) or hasattr(Loop, name), f"{page.name}: loop.{name}"
        for name in re.findall(r"`trainer\.(\w+)", text):
            assert hasattr(Trainer, name) or hasattr(trainer, name), f"{page.name}: trainer.{name}"


def test_the_events_of_the_tables_are_hooks():
    table = re.search(r"^## Ignite.*?^## ", PAGES[0].read_text(), flags=re.MULTILINE | re.DOTALL)[0]
    ours = [cells.split("|")[2] for cells in table.splitlines() if cells.startswith("| `Events.")]
    names = [name for cell in ours for name in re.findall(r"`(\w+)`", cell)]
    assert len(names) >= 7
    assert all(hasattr(Hooks, name) for name in names)
