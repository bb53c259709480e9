"""Every call that a checkpoint makes to the file system, in one place: tests make any of them fail."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable
from typing import Any

Place = str | os.PathLike[str]


class Disk:
    """The local file system; each method is one step that a crash may come before or after."""

    def mkdir(self, path: Place) -> None:
        """Make a directory that must not exist."""
        os.mkdir(path)

    def create(self, path: Place) -> int:
        """Open a new file for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, handle: int, data: memoryview) -> int:
        """Write some of ``data``; how many bytes."""
        return os.write(handle, data)

    def fsync(self, handle: int) -> None:
        """Wait until what was written is on the device."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """Bytes of an open file, as the file system tells it."""
        return os.fstat(handle).st_size

    def free(self, path: Place) -> int | None:
        """Bytes that can still be written there, as the file system tells it; None where it does not."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def fsync_directory(self, path: Place) -> None:
        """Wait until the names in a directory are on the device."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Place, target: Place) -> None:
        """Give a directory its new name, which must be free."""
        os.rename(source, target)

    def remove(self, path: Place) -> None:
        """Delete a directory with all that is in it."""
        try:
            for name in os.listdir(path):  # nearly always a few files: half of what rmtree takes
                os.unlink(os.path.join(path, name))
            os.rmdir(path)
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path)

    def names(self, path: Place) -> list[str]:
        """What is in a directory."""
        return sorted(os.listdir(path))

    def read(self, path: Place, limit: int) -> bytearray:
        """The bytes of a regular file; links, pipes and directories are refused, and more than ``limit`` bytes too."""
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{os.path.basename(path)} is not a regular file")
            if status.st_size > limit:
                raise OSError(f"{os.path.basename(path)} has {status.st_size} bytes where {limit} are expected")
            data = bytearray(status.st_size)
            view, at = memoryview(data), 0
            while at < len(data) and (count := os.preadv(handle, [view[at : at + 2**30]], at)):
                at += count
            if at < len(data):
                raise OSError(f"{os.path.basename(path)} could be read up to byte {at} of {len(data)}")
            return data
        finally:
            os.close(handle)

    def lock(self, path: Place) -> int | None:
        """Take the lock that ``path`` stands for; None if another process has it.

        A record lock: it ends with the process, and data-loader workers that outlive it do not hold it.
        """
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle


def write_all(disk: Disk, path: Place, parts: Iterable[memoryview], digest: Any) -> int:
    """Write a new file, durably, and give ``digest`` all that is written; how many bytes."""
    handle, written = disk.create(path), 0
    try:
        for part in parts:
            rest = part.cast("B")
            digest.update(rest)
            while rest:
                count = disk.write(handle, rest[: 2**30])
                if count <= 0:
                    raise OSError(f"{os.path.basename(path)}: nothing could be written at byte {written}")
                rest, written = rest[count:], written + count
        disk.fsync(handle)
        if (size := disk.size(handle)) != written:
            raise OSError(f"{os.path.basename(path)} has {size} bytes after {written} were written")
    finally:
        disk.close(handle)
    return written
