"""The script that checks a machine's GPUs says where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.processes
SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.mark.skipif(
    torch.accelerator.is_available(), reason="there is an accelerator, on which it would run for minutes"
)
def test_without_a_gpu_nothing_is_checked_and_that_is_no_success():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "there is no GPU that torch can use: nothing has been checked" in done.stdout
