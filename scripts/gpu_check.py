"""Run the contract of accelerators and the benchmarks on this machine's GPUs.

    python scripts/gpu_check.py [--accelerator gpu] [--rounds 6] [further arguments for pytest]

The contract is run with one process and, where there are two devices or more, with ddp and fsdp on two of them. On
CUDA, benchmarks/gpu.py then shows that the GPU does not wait. Ends with an exit status other than 0 if anything fails. ``--accelerator cpu`` tries the script out where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightloop.testing.accelerators import AcceleratorContract

ROOT = Path(__file__).resolve().parent.parent
KIND = os.environ.get("GPU_CHECK_ACCELERATOR", "gpu")
COUNT = 2 if KIND == "cpu" else torch.accelerator.device_count() if torch.accelerator.is_available() else 0
several = pytest.mark.skipif(COUNT < 2, reason=f"needs two devices, and there are {COUNT}")


class TestOne(AcceleratorContract):
    """One device, one process."""

    options = {"accelerator": KIND}  # noqa: RUF012
    tolerance = 1e-4
    timeout = 300.0
    patience = 60.0


@several
class TestDdp(TestOne):
    """Two devices, a process for each."""

    options = {"accelerator": KIND, "strategy": "ddp", "ddp_timeout": 60.0}  # noqa: RUF012
    ranks = 2


@several
class TestFsdp(TestOne):
    """Two devices, each with a part of every parameter."""

    options = {"accelerator": KIND, "strategy": "fsdp", "fsdp_min_size": 100, "fsdp_timeout": 60.0}  # noqa: RUF012
    ranks = 2


def main() -> int:
    """Say what there is, and check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accelerator", default="gpu")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of the benchmark; 0 leaves it out")
    arguments, rest = parser.parse_known_args()
    os.environ["GPU_CHECK_ACCELERATOR"] = arguments.accelerator
    found = torch.accelerator.current_accelerator(check_available=True)
    print(
        f"torch {torch.__version__}, {torch.accelerator.device_count() if found else 0} devices of {found or 'no accelerator'}"
    )
    if arguments.accelerator != "cpu" and found is None:
        print("there is no GPU that torch can use: nothing has been checked")
        return 2
    for index in range(torch.accelerator.device_count() if found and found.type == "cuda" else 0):
        print(f"  {index}: {torch.cuda.get_device_name(index)}")
    status = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", __file__, *rest], cwd=ROOT, check=False
    ).returncode
    if found is not None and found.type == "cuda":
        status = subprocess.run([sys.executable, "benchmarks/gpu.py"], cwd=ROOT, check=False).returncode or status
    if arguments.rounds:
        command = [sys.executable, "benchmarks/loop.py", "--rounds", str(arguments.rounds), "--batches", "500"]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode or status
    return status


if __name__ == "__main__":
    sys.exit(main())
