"""The notebook is executed by a kernel, as it would be in a browser."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


# What jupyter's own packages warn of is theirs.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.processes
def test_the_notebook_runs_and_shows_bars_curves_and_the_order(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert all(output.output_type != "error" for output in outputs)
    shown = [output.data for output in outputs if "data" in output]
    bars = [data["text/plain"] for data in shown if "application/vnd.jupyter.widget-view+json" in data]
    assert len([bar for bar in bars if "epoch" in bar]) >= 5
    assert any("image/png" in data for data in shown)
    texts = [data["text/plain"] for data in shown] + [output.text for output in outputs if "text" in output]
    assert any("Result(status='finished', reason=None, epoch=5, global_step=225" in text for text in texts)
    assert any(re.search(r"^  \d. clip ", text, re.MULTILINE) for text in texts)
