"""Remove what a writer that died has left of itself, and nothing else, whatever it is called."""

from __future__ import annotations

import os
import re
import stat

from lightloop.toolkit import open_directory, warn
from lightloop_plugins.checkpoint.format.manifest import MANIFEST, STATE, TENSORS
from lightloop_plugins.checkpoint.sharded.index import INDEX
from lightloop_plugins.checkpoint.storage.disk import Disk
from lightloop_plugins.checkpoint.storage.folder import DEAD, EXCEPTION, PREFIX, TEMPORARY

_CHECKPOINT = rf"(?:{PREFIX}|{EXCEPTION})\d{{9}}(?:-[A-Za-z0-9._-]+)?"
_OWN = re.compile(rf"(?:{re.escape(TEMPORARY)}[A-Za-z0-9_][A-Za-z0-9._-]*-|{re.escape(DEAD)}){_CHECKPOINT}-\d+")
"""``.tmp-<run>-<checkpoint>-<process>`` and ``.dead-<checkpoint>-<process>``."""
_FILE = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(STATE)}|{re.escape(TENSORS)}|{re.escape(INDEX)}|shard-\d+\.safetensors"
)


def clear(disk: Disk, at: int, place: str) -> None:
    """Remove from the folder ``at`` the directories that have the name and the content of an unfinished save or removal.

    One that cannot be removed, and one that has the name but not the content, stays and is told of.
    """
    for name in disk.names(at):
        if not _OWN.fullmatch(name):
            continue
        try:
            if (odd := _odd(at, name)) is not None:
                raise OSError(odd)
            disk.remove(at, name)
        except OSError as error:
            warn(f"{place}/{name}, left by a writer that died, stays: {error}")


def _odd(at: int, name: str) -> str | None:
    """What is in a directory that no save has put there."""
    inside = open_directory(name, at, follow=False)
    try:
        for each in sorted(os.listdir(inside)):
            kind = os.stat(each, dir_fd=inside, follow_symlinks=False).st_mode
            if not _FILE.fullmatch(each) or not stat.S_ISREG(kind):
                return f"{each} in it is not Lightloop's"
    finally:
        os.close(inside)
    return None
