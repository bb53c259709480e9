import os
import shutil
import tempfile
from pathlib import Path

import pytest


def in_memory():
    """A new folder, in memory where there is such a place: each save waits for its device several times."""
    return Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


@pytest.fixture
def tmp_path():
    path = in_memory()
    yield path
    shutil.rmtree(path, ignore_errors=True)
