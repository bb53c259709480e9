"""Checkpoints in a directory of this machine: they outlive a crash, a full disk and a power cut at any moment."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from lightloop.toolkit import BusyError, Writer, make_directory, open_directory, open_handle
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import MANIFEST, is_name, write_manifest
from lightloop_plugins.checkpoint.storage.disk import Disk, write_all
from lightloop_plugins.checkpoint.storage.folder import BAD, DEAD, PREFIX, TEMPORARY, Content, Folder
from lightloop_plugins.checkpoint.storage.leftovers import clear

ROOM = 2**16
"""Bytes that a checkpoint takes beside its content: the manifest, and what the file system keeps of its own."""
LOCK = ".lock"
"""The file that says who writes in the folder, or has written there last."""


class LocalFolder(Folder):
    """A directory of the local file system.

    Args:
        path: where it is; a relative one is of the directory in which the process is now.
        disk: by what it is written.
        follow: whether the directory may be a link; what is in it never is.
    """

    def __init__(self, path: str | os.PathLike[str], disk: Disk | None = None, follow: bool = True) -> None:
        super().__init__(os.fspath(path))
        self.path = Path(os.path.abspath(path))
        self.disk = disk or Disk()
        self._follow = follow
        self._writer: Writer | None = None
        self._held: int | None = None
        self._inside: tuple[str, int] | None = None  # the directory that is being written

    def opened(self, name: str | None = None) -> AbstractContextManager[int]:
        """The descriptor of the folder, or of the directory ``name`` in it."""
        if name is None:
            return self._open() if self._held is None else nullcontext(self._held)
        if self._inside is not None and self._inside[0] == name:
            return nullcontext(self._inside[1])
        return self._open(name)

    @contextmanager
    def _open(self, name: str | None = None) -> Iterator[int]:
        if name is None:
            handle = open_directory(self.path, follow=self._follow)
        else:
            with self.opened() as at:
                handle = open_directory(name, at, follow=False)
        try:
            yield handle
        finally:
            os.close(handle)

    def entries(self) -> list[str]:
        """All that is in the folder."""
        with self.opened() as at:
            return self.disk.names(at)

    def names(self) -> list[str]:
        try:
            return [name for name in self.entries() if name.startswith(PREFIX) and is_name(name)]
        except FileNotFoundError:
            return []

    def has(self, name: str) -> bool:
        try:
            with self.opened() as at:
                os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def files(self, name: str) -> list[str]:
        with self.opened(name) as inside:
            return self.disk.names(inside)

    def read(self, name: str, file: str, limit: int) -> bytearray:
        with self.opened(name) as inside:
            return self.disk.read(inside, file, limit)

    def write(self, name: str, content: Content, body: Mapping[str, Any]) -> None:
        temporary = f"{TEMPORARY}{body['run']}-{name}-{os.getpid()}"
        if self.has(name):
            raise CheckpointError(f"{self.describe(name)} is there already, and is not overwritten")
        try:
            with self.opened() as at:
                self._write(at, temporary, name, content, body)
        except OSError as error:
            raise CheckpointError(f"{self.describe(name)} is not saved: {self._explain(error, content)}") from error

    def _write(self, at: int, temporary: str, name: str, content: Content, body: Mapping[str, Any]) -> None:
        made = temporary
        try:
            self._look_for_room(at, content)
            self._make(at, temporary)
            self._inside = temporary, open_directory(temporary, at, follow=False)
            try:
                files = content.write(self, temporary)
                self.put(temporary, MANIFEST, [memoryview(write_manifest(body, files))])
                self.disk.fsync_directory(self._inside[1])
            finally:
                (_, inside), self._inside = self._inside, None
                os.close(inside)
            self.disk.rename(at, temporary, name)
            made = name
            self.disk.fsync_directory(at)
        except BaseException:
            with suppress(OSError):  # it is not taken for a checkpoint, and the next start removes it
                self._undo(at, made)
            raise

    def _make(self, at: int, temporary: str) -> None:
        try:
            self.disk.mkdir(at, temporary)
        except FileExistsError:  # a save of this process that failed, and could not be cleared away
            self.disk.remove(at, temporary)
            self.disk.mkdir(at, temporary)

    def _undo(self, at: int, made: str) -> None:
        if not self.has(made):
            return
        if made.startswith(TEMPORARY):
            self.disk.remove(at, made)
        else:  # its name may not be on the device: a checkpoint that counts as not saved is not there
            self.remove(made)

    def put(self, place: str, file: str, parts: Iterable[memoryview]) -> tuple[int, str]:
        digest = hashlib.sha256()
        with self.opened(place) as inside:
            return write_all(self.disk, inside, file, parts, digest), digest.hexdigest()

    def remove(self, name: str) -> None:
        dead = f"{DEAD}{name}-{os.getpid()}"
        with self.opened() as at:
            self.disk.rename(at, name, dead)
            self.disk.remove(at, dead)

    def set_aside(self, name: str) -> str:
        number = 0
        while self.has(target := f"{BAD}{name}{f'-{number}' if number else ''}"):
            number += 1
        with self.opened() as at:
            self.disk.rename(at, name, target)
        return target

    def hold(self) -> None:
        if self._writer is not None:
            return
        try:
            make_directory(self.path)
            last = self.last_run()
            self._writer = self.disk.lock(self.path, f"run {last}" if last else "", self._follow)
            self._held = open_directory(self.path, follow=self._follow)
        except BusyError as error:
            raise CheckpointError(
                f"{str(error).replace(' writes to ', ' writes checkpoints to ')}. Wait for it, stop it, or give another "
                "checkpoint_dir"
            ) from error
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"checkpoints cannot be written to {self.place}: {error}; give another checkpoint_dir, "
                "or enable_checkpointing=False to run without"
            ) from error

    def open(self, run: str) -> None:
        self.hold()
        assert self._writer is not None
        assert self._held is not None
        try:
            self._writer.describe(f"run {run}")
            clear(self.disk, self._held, self.place)
        except OSError as error:
            self.close()
            raise CheckpointError(f"checkpoints cannot be written to {self.place}: {error}") from error

    def close(self) -> None:
        writer, self._writer, held, self._held = self._writer, None, self._held, None
        if held is not None:
            os.close(held)
        if writer is not None:
            writer.release(keep=True)  # it says which run has written last

    def last_run(self) -> str | None:
        try:
            with self.opened() as at:
                handle = open_handle(at, LOCK, os.O_RDONLY)
        except OSError:
            return None
        with open(handle, "rb") as stream:
            line = stream.read(1000).decode(errors="replace").strip()
        found = re.search(r", run ([A-Za-z0-9_][A-Za-z0-9._-]*)$", line)
        return found[1] if found else None

    def _look_for_room(self, at: int, content: Content) -> None:
        """Refuse to begin what cannot be finished; a file system may say nothing of its room, or be wrong."""
        try:
            free = self.disk.free(at)
        except OSError:
            return
        if free is not None and free < content.size + ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _explain(self, error: OSError, content: Content) -> str:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return f"{error.strerror or error}. Older ones are untouched"
        try:
            with self.opened() as at:
                free = self.disk.free(at)
        except OSError:
            free = None
        room = "how many are free is unknown" if free is None else f"{free:,} are free"
        return f"{error.strerror} at {self.place}; it needs {content.size:,} bytes, {room}. Older ones are untouched"
