import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightloop.testing import toy_device

FOLDER = Path(__file__).parents[1] / "toy"


@pytest.mark.processes
@pytest.mark.skipif(toy_device.why_not() is not None, reason=str(toy_device.why_not()))
def test_on_a_second_device():
    """Everything in tests/toy, in a process that has the device from its beginning."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        env={**os.environ, "LIGHTLOOP_TOY_DEVICE": "1"},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
