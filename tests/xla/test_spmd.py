"""Several devices of XLA: each number of them needs a process of its own, which tests/xla/spmd runs in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "spmd"


@pytest.mark.xla
@pytest.mark.processes
@pytest.mark.parametrize("devices", [2, 4])
def test_with_several_devices(devices):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        env={**os.environ, "CPU_NUM_DEVICES": str(devices), "LIGHTLOOP_SPMD": "1"},
        cwd=FOLDER.parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
