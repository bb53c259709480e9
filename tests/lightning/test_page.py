"""What of the page on moving from Lightning can only be checked where Lightning is."""

import inspect
import re
import warnings
from pathlib import Path

import lightning.pytorch as pl

from lightloop.host.keywords import known_options
from lightloop.toolkit import discover

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "from-lightning.md"


def test_the_block_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^<!-- not run: Lightning [^\n]* -->\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(blocks[0], str(PAGE), "exec"), {"__name__": "page"})


def test_every_argument_of_lightnings_trainer_is_one_here_or_on_the_page():
    kinds = {name for found in discover().values() for name in found.plugin.names()}
    ours = {*known_options(discover()), *kinds, "self", "plugins"}
    missing = sorted({*inspect.signature(pl.Trainer.__init__).parameters} - ours)
    text = PAGE.read_text()
    assert [name for name in missing if not re.search(rf"`{name}[`=]", text)] == []
