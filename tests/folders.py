"""Folders for what tests write."""

import os
import shutil
import tempfile
from pathlib import Path

SHARED = "/dev/shm"
ROOM = 2**30
"""Bytes; containers often have less there."""


def in_memory():
    """A new folder, in memory where there is room for it: each save waits for its device several times."""
    there = os.access(SHARED, os.W_OK) and shutil.disk_usage(SHARED).free > ROOM
    return Path(tempfile.mkdtemp(prefix="lightloop-", dir=SHARED if there else None))
