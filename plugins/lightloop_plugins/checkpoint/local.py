"""Checkpoints in a directory of this machine: they outlive a crash, a full disk and a power cut at any moment."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightloop import warn
from lightloop_plugins.checkpoint.disk import Disk, write_all
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.manifest import MANIFEST, is_name, write_manifest
from lightloop_plugins.checkpoint.storage import BAD, DEAD, PREFIX, TEMPORARY, Content, Folder

ROOM = 2**16
"""Bytes that a checkpoint takes beside its content: the manifest, and what the file system keeps of its own."""


class LocalFolder(Folder):
    """A directory of the local file system."""

    def __init__(self, path: str | os.PathLike[str], disk: Disk | None = None) -> None:
        super().__init__(os.fspath(path))
        self.path = Path(path)
        self._root = os.fspath(path)  # joined as text: a save is half made of paths
        self.disk = disk or Disk()
        self._lock: int | None = None

    def names(self) -> list[str]:
        try:
            return [name for name in self.disk.names(self.path) if name.startswith(PREFIX) and is_name(name)]
        except FileNotFoundError:
            return []

    def has(self, name: str) -> bool:
        return os.path.lexists(self._at(name))

    def files(self, name: str) -> list[str]:
        return self.disk.names(self.path / name)

    def read(self, name: str, file: str, limit: int) -> bytearray:
        if (self.path / name).is_symlink():
            raise OSError(f"{name} is a link")
        return self.disk.read(self.path / name / file, limit)

    def write(self, name: str, content: Content, body: Mapping[str, Any]) -> None:
        inside = f"{TEMPORARY}{body['run']}-{name}-{os.getpid()}"
        temporary = self._at(inside)
        if self.has(name):
            raise CheckpointError(f"{self.describe(name)} is there already, and is not overwritten")
        try:
            self._look_for_room(content)
            self._make(temporary)
            files = content.write(self, inside)
            self.put(inside, MANIFEST, [memoryview(write_manifest(body, files))])
            self.disk.fsync_directory(temporary)
            self.disk.rename(temporary, self._at(name))
            self.disk.fsync_directory(self._root)
        except BaseException as error:
            try:
                if os.path.lexists(temporary):
                    self.disk.remove(temporary)
            except OSError:
                pass  # it is not taken for a checkpoint, and the next start removes it
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(f"{self.describe(name)} is not saved: {self._explain(error, content)}") from error

    def _make(self, temporary: str) -> None:
        try:
            self.disk.mkdir(temporary)
        except FileExistsError:  # a save of this process that failed, and could not be cleared away
            self.disk.remove(temporary)
            self.disk.mkdir(temporary)

    def put(self, place: str, file: str, parts: Iterable[memoryview]) -> tuple[int, str]:
        digest = hashlib.sha256()
        return write_all(self.disk, self._at(place, file), parts, digest), digest.hexdigest()

    def remove(self, name: str) -> None:
        dead = self._at(f"{DEAD}{name}-{os.getpid()}")
        self.disk.rename(self._at(name), dead)
        self.disk.remove(dead)

    def set_aside(self, name: str) -> str:
        number = 0
        while (target := self.path / f"{BAD}{name}{f'-{number}' if number else ''}").exists():
            number += 1
        self.disk.rename(self.path / name, target)
        return target.name

    def open(self, run: str) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self.disk.lock(self.path / ".lock")
            if self._lock is not None:
                line = f"pid {os.getpid()} on {socket.gethostname()}, run {run}\n".encode()
                os.pwrite(self._lock, line, 0)
                os.ftruncate(self._lock, len(line))
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"checkpoints cannot be written to {self.place}: {error}; give another checkpoint_dir, "
                "or enable_checkpointing=False to run without"
            ) from error
        if self._lock is None:
            holder = (self.path / ".lock").read_text(errors="replace")[:200].split("\n")[0]
            raise CheckpointError(
                f"another process writes checkpoints to {self.place}: {holder or 'unknown'}. Wait for it, stop it, "
                "or give another checkpoint_dir"
            )
        for name in self.disk.names(self.path):
            if name.startswith((TEMPORARY, DEAD)):
                try:
                    self.disk.remove(self.path / name)
                except OSError as error:
                    warn(f"{self.place}/{name}, left by a writer that died, stays: {error}")

    def _at(self, *names: str) -> str:
        return "/".join((self._root, *names))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def last_run(self) -> str | None:
        try:
            line = self.path.joinpath(".lock").read_text(errors="replace")[:300].strip()
        except OSError:
            return None
        return line.rpartition("run ")[2] or None

    def _look_for_room(self, content: Content) -> None:
        """Refuse to begin what cannot be finished; a file system may say nothing of its room, or be wrong."""
        try:
            free = self.disk.free(self._root)
        except OSError:
            return
        if free is not None and free < content.size + ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _explain(self, error: OSError, content: Content) -> str:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return f"{error.strerror or error}. Older ones are untouched"
        try:
            free = self.disk.free(self._root)
        except OSError:
            free = None
        room = "how many are free is unknown" if free is None else f"{free:,} are free"
        return f"{error.strerror} at {self.place}; it needs {content.size:,} bytes, {room}. Older ones are untouched"
