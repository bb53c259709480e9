import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_both_networks_learn_and_the_result_is_printed(monkeypatch, tmp_path, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(sys, "argv", ["gan_digits.py", "--epochs", "4", "--dir", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "gan_digits.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "112 steps: 112 of the discriminator, 112 of the generator" in printed
    (before,) = [line for line in printed.splitlines() if line.startswith("before training")]
    (after,) = [line for line in printed.splitlines() if line.startswith("after training")]
    assert float(after.split()[2]) < float(before.split()[2])
    assert len(printed.splitlines()[-1]) == 4 * 16 + 3 * 3
