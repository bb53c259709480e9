"""Every call by which a checkpoint is written, in one place: tests make any of them fail.

What is in a directory is named by the directory's descriptor and one name, so that no link can lead elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightloop.toolkit import Writer, open_directory, open_handle


class Disk:
    """The local file system; each method is one step that a crash may come before or after."""

    def mkdir(self, at: int, name: str) -> None:
        """Make a directory that must not exist."""
        os.mkdir(name, dir_fd=at)

    def create(self, at: int, name: str) -> int:
        """Open a new file for writing."""
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=at)

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

    def free(self, at: int) -> int | None:
        """Bytes that can still be written there, as the file system tells it; None where it does not."""
        found = os.fstatvfs(at)
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def fsync_directory(self, at: int) -> None:
        """Wait until the names in a directory are on the device."""
        os.fsync(at)

    def rename(self, at: int, source: str, target: str) -> None:
        """Give a directory its new name, which must be free."""
        os.rename(source, target, src_dir_fd=at, dst_dir_fd=at)

    def remove(self, at: int, name: str) -> None:
        """Delete a directory with all that is in it; of a link in it, only the link."""
        inside = open_directory(name, at)
        try:
            for each in os.listdir(inside):  # nearly always a few files: half of what rmtree takes
                os.unlink(each, dir_fd=inside)
            os.rmdir(name, dir_fd=at)
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(name, dir_fd=at)
        finally:
            os.close(inside)

    def names(self, at: int) -> list[str]:
        """What is in a directory."""
        return sorted(os.listdir(at))

    def read(self, at: int, name: str, limit: int) -> bytearray:
        """The bytes of a regular file; links, pipes and directories are refused, and more than ``limit`` bytes too."""
        handle = open_handle(at, name, os.O_RDONLY)
        try:
            size = os.fstat(handle).st_size
            if size > limit:
                raise OSError(f"{name} has {size} bytes where {limit} are expected")
            data = bytearray(size)
            view, done = memoryview(data), 0
            while done < size and (count := os.preadv(handle, [view[done : done + 2**30]], done)):
                done += count
            if done < size:
                raise OSError(f"{name} could be read up to byte {done} of {size}")
            return data
        finally:
            os.close(handle)

    def lock(self, path: Path, about: str, follow: bool) -> Writer:
        """Become the one that writes in a directory."""
        return Writer.of(path, about, follow)


def write_all(disk: Disk, at: int, name: str, parts: Iterable[memoryview], digest: Any) -> int:
    """Write a new file, durably, and give ``digest`` all that is written; how many bytes."""
    handle, written = disk.create(at, name), 0
    try:
        for part in parts:
            rest = part.cast("B")
            digest.update(rest)
            while rest:
                count = disk.write(handle, rest[: 2**30])
                if count <= 0:
                    raise OSError(f"{name}: nothing could be written at byte {written}")
                rest, written = rest[count:], written + count
        disk.fsync(handle)
        if (size := disk.size(handle)) != written:
            raise OSError(f"{name} has {size} bytes after {written} were written")
    finally:
        disk.close(handle)
    return written
