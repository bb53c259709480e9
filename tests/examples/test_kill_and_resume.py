"""kill_and_resume.py, which starts char_lm.py three times."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.processes
def test_a_language_model_that_was_killed_ends_with_the_same_bits(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "kill_and_resume.py", "--steps", "48", "--characters", "60000"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    killed, gone_on, whole, verdict = done.stdout.splitlines()
    assert killed == "killed after 28 steps, in batch 6 of epoch 0"
    assert re.match(r"gone on: after 48 steps: \d\.\d{3} bits per character held out; sha256", gone_on)
    assert gone_on.removeprefix("gone on") == whole.removeprefix("in one go")
    assert verdict == "weights equal to the last bit: True; rows of metrics.csv equal: True"
