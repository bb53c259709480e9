"""Exclusive write access to a directory: one writer at a time."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from pathlib import Path
from typing import Self

from lightloop.toolkit.files import open_directory, open_handle, told
from lightloop.warning import warn

NAME = ".lock"
"""The file in the directory that the lock is on."""
LACKING = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What a file system answers that has no locks."""


class BusyError(OSError):
    """Another writer holds the lock of a directory."""


class Writer:
    """The right to write in a directory; another process, and another part of this one, is refused until it is given back.

    It is a lock on the open file, not on the process: no other descriptor that is closed gives it up. A process that dies
    gives it back, and a forked one does not have it. Where the file system has no locks, that is said in a warning.
    """

    _handles: set[int] = set()  # noqa: RUF012  # of this process: a forked one closes them
    _forks = False

    def __init__(self, path: Path, at: int, handle: int) -> None:
        self.path = path
        self._at, self._handle, self._pid = at, handle, os.getpid()

    @classmethod
    def of(cls, path: str | os.PathLike[str], about: str = "", follow: bool = False) -> Self:
        """Acquire write access to the directory ``path``.

        Args:
            path: the directory, which must be there.
            about: what others are told, beside the process and its machine.
            follow: whether the directory may be a link.

        Raises:
            BusyError: if another has the right; nothing has been changed then.
            OSError: if the directory cannot be written to.
        """
        at = open_directory(path, follow=follow)
        try:
            return cls(Path(path), at, cls._take(Path(path), at, about))
        except BaseException as error:
            os.close(at)
            if isinstance(error, OSError) and not isinstance(error, BusyError):
                raise told(error, path, NAME) from None
            raise

    @classmethod
    def _take(cls, path: Path, at: int, about: str) -> int:
        cls._close_in_forks()
        while True:
            handle = open_handle(at, NAME, os.O_RDWR | os.O_CREAT)
            cls._handles.add(handle)
            try:
                if not _lock(handle, path):
                    raise BusyError(_busy(path, os.pread(handle, 300, 0)))
                if _is(handle, at):
                    _describe(handle, about)
                    return handle
            except BaseException:
                cls._let_go(handle)
                raise
            cls._let_go(handle)  # it was given back, and its file removed, between the two calls

    def describe(self, about: str) -> None:
        """Tell others something else."""
        _describe(self._handle, about)

    def release(self, keep: bool = False) -> None:
        """Release the lock, and delete its file unless it is to be kept; does nothing in a forked process."""
        if self._handle < 0 or self._pid != os.getpid():
            return
        handle, self._handle = self._handle, -1
        try:
            if not keep and _is(handle, self._at):
                os.unlink(NAME, dir_fd=self._at)
        except OSError:
            pass  # it is only a name
        finally:
            self._let_go(handle)
            os.close(self._at)

    @classmethod
    def _let_go(cls, handle: int) -> None:
        cls._handles.discard(handle)
        os.close(handle)

    @classmethod
    def _close_in_forks(cls) -> None:
        if not Writer._forks and hasattr(os, "register_at_fork"):
            Writer._forks = True
            os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """In a forked process: a worker that outlives its parent must not keep others from writing."""
    for handle in Writer._handles:
        os.close(handle)
    Writer._handles.clear()


def _lock(handle: int, path: Path) -> bool:
    """Whether the lock is taken; where there are none, it counts as taken."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return _lacks(path, "this system")
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            whole = struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, whole)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in LACKING:
            return _lacks(path, f"its file system ({error.strerror})")
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _lacks(path: Path, what: str) -> bool:
    warn(f"{path} cannot be locked, for {what} has no locks: see to it that no second process writes there")
    return True


def _is(handle: int, at: int) -> bool:
    """Whether the open file is still the one that the directory has under its name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(NAME, dir_fd=at, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _describe(handle: int, about: str) -> None:
    line = f"pid {os.getpid()} on {socket.gethostname()}{', ' if about else ''}{about}\n".encode()
    os.pwrite(handle, line, 0)
    os.ftruncate(handle, len(line))


def _busy(path: Path, said: bytes) -> str:
    line = re.sub(r"[^ -~]", "?", said.decode(errors="replace").split("\n")[0])
    here = f"pid {os.getpid()} on {socket.gethostname()}"
    who = "another Trainer of this process" if line.partition(",")[0] == here else "another process"
    return f"{who} writes to {path}: {line or 'unknown'}"


__all__ = ["BusyError", "Writer"]
