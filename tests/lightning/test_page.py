"""The block of the page on moving from Lightning that only runs where Lightning is."""

import re
import warnings
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "from-lightning.md"


def test_the_block_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^<!-- not run: Lightning [^\n]* -->\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(blocks[0], str(PAGE), "exec"), {"__name__": "page"})
