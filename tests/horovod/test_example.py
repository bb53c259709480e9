"""The example, as a user would start it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.horovod
@pytest.mark.processes
def test_horovodrun_starts_the_example(tmp_path):
    launcher = Path(sys.executable).parent / "horovodrun"
    done = subprocess.run(
        [
            sys.executable,
            launcher,
            "--gloo",
            "-np",
            "2",
            "-H",
            "localhost:2",
            sys.executable,
            ROOT / "examples/horovod_digits.py",
        ],
        env={**os.environ, "PATH": f"{launcher.parent}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"2 processes, 120 steps each: .*'val_accuracy': ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found.group(1)) > 0.9
