"""The example, as a user would start it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The bar reads the mean of the losses so far when the clock says so, and how many they are is a shape.
OWN = {"CPU_NUM_DEVICES": "2", "LIGHTLOOP_PLUGINS": "-progress"}


@pytest.mark.xla
@pytest.mark.processes
def test_the_example_learns_and_compiles_no_more_in_more_epochs(tmp_path):
    programs = []
    for epochs in (2, 5):
        done = subprocess.run(
            [sys.executable, ROOT / "examples/xla_digits.py", "--epochs", str(epochs)],
            env={**os.environ, **OWN, "LIGHTLOOP_RUNS": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        found = re.search(r"2 devices, (\d+) steps, (\d+) programs: .*'val_accuracy': ([\d.]+)", done.stdout)
        assert found, done.stdout + done.stderr
        assert int(found.group(1)) == 24 * epochs
        programs.append(int(found.group(2)))
    assert float(found.group(3)) > 0.85
    assert programs[0] == programs[1] > 0
