"""The scripts that check a machine's GPUs say where there is none."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.py"
BENCHMARK = ROOT / "benchmarks" / "gpu.py"


@pytest.mark.skipif(
    torch.accelerator.is_available(), reason="there is an accelerator, on which it would run for minutes"
)
def test_without_a_gpu_nothing_is_checked_and_that_is_no_success(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    monkeypatch.setenv("GPU_CHECK_ACCELERATOR", "gpu")  # which it sets for its own processes
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 2
    assert "there is no GPU that torch can use: nothing has been checked" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU, on which it would run for minutes")
def test_the_benchmark_says_so_as_well_and_what_it_can_check_without_one_holds():
    done = subprocess.run([sys.executable, BENCHMARK], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "finds no CUDA GPU: nothing has been checked" in done.stdout
    small = ("--accelerator", "cpu", "--rounds", "1", "--batches", "6", "--width", "16", "--rows", "4")
    done = subprocess.run([sys.executable, BENCHMARK, *small], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(":")[0].split() for line in done.stdout.splitlines()[1:6]] == [
        ["holds", "side_stream"],
        *(["passed", "over", name] for name in ("graphs", "overlap", "no_wait", "memory")),
    ]
