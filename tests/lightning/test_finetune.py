"""The example that fine-tunes a model of the package transformers, which is in the same environment."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_transformer.py"


@pytest.mark.processes
def test_what_was_learnt_before_helps(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--steps", "30", "--dir", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    loaded, tuned, new = [float(found) for found in re.findall(r":\s+(\d\.\d{3})$", done.stdout, re.MULTILINE)]
    assert tuned < loaded < 8
    assert tuned < new < 8
    assert (tmp_path / "pretrained" / "config.json").exists()
