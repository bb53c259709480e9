"""Open what is in a directory in which others may have put anything: regular files alone, through no link, at once.

A run's directory may come from someone else. A link in it leads to a file of yours, a pipe never answers, a device never
ends. What a plugin opens there, it opens by these functions; each is given the directory and the name of a file in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import IO, Any

Directory = str | os.PathLike[str]
MODES = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_in(directory: Directory, name: str, mode: str = "r", **how: Any) -> IO[Any]:
    """Open the file ``name`` of ``directory``, as ``open`` does.

    Args:
        directory: is followed if it is a link; what is in it is not.
        name: one name, without a separator.
        mode: as of ``open``: "r", "r+", "w", "a" or "x", with a "b" for bytes.
        how: ``encoding``, ``newline`` and the like, as of ``open``.

    Raises:
        FileNotFoundError: if it is not there, and is to be read.
        OSError: if it is a link, a pipe, a device or a directory; or is to be written and has a second name, as a hard
            link gives it: the other name may be a file of yours.
    """
    at = open_directory(directory)
    try:
        handle = open_handle(at, name, MODES[mode.replace("b", "")])
    except OSError as error:
        raise told(error, directory, name) from None
    finally:
        os.close(at)
    return open(handle, mode.replace("x", "w"), **how)


@contextlib.contextmanager
def replace_in(directory: Directory, name: str, mode: str = "w", **how: Any) -> Iterator[IO[Any]]:
    """A new file, which takes the place of ``name`` in ``directory`` when the block is through; after an error it does not.

    Whole or not at all, also when the power is cut: the file is on the disk before it takes the place.

    Raises:
        OSError: as :func:`open_in` does, before the block.
    """
    part = f".{name}.part"
    at = open_directory(directory)
    try:
        try:
            check(at, name, writing=True)
            if check(at, part, writing=True):  # left by a process that died
                os.unlink(part, dir_fd=at)
            handle = open_handle(at, part, MODES["x"])
        except OSError as error:
            raise told(error, directory, name) from None
        try:
            with open(handle, mode, **how) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(part, name, src_dir_fd=at, dst_dir_fd=at)
            os.fsync(at)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=at)
            raise
    finally:
        os.close(at)


def make_directory(path: Directory, exist_ok: bool = True) -> None:
    """Make a directory and those above it; on return their names are on the disk, and outlive a power cut.

    Raises:
        OSError: as ``os.mkdir`` does.
    """
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    if not os.path.lexists(parent):  # where it is something else, mkdir says so
        make_directory(parent)
    try:
        os.mkdir(path)
    except OSError:
        if not exist_ok or not os.path.isdir(path):
            raise
        return
    with contextlib.suppress(OSError):  # one may be allowed to make something there, and not to open it
        at = open_directory(parent)
        try:
            os.fsync(at)
        finally:
            os.close(at)


def open_directory(path: Directory, at: int | None = None, follow: bool = True) -> int:
    """The descriptor of a directory; one in the directory ``at`` is not followed if it is a link.

    Raises:
        OSError: if it is none, or a link and ``follow`` is False.
    """
    how = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if at is None and follow:
        return os.open(path, how)
    name = os.fspath(path).rstrip("/") or "/"  # with a slash at its end, a link would be followed
    try:
        return os.open(name, how | os.O_NOFOLLOW, dir_fd=at)  # what is no directory is not waited for
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise OSError(f"{name} is a link") from None
        raise


def open_handle(at: int, name: str, flags: int) -> int:
    """The descriptor of a regular file in the directory ``at``.

    Raises:
        OSError: as :func:`open_in` does.
    """
    writing = flags & (os.O_WRONLY | os.O_RDWR)
    there = check(at, name, bool(writing))
    if not there and not flags & os.O_CREAT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    how = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # what has come there since cannot block
    handle = os.open(name, how, 0o666, dir_fd=at)
    try:
        _check(os.fstat(handle), name, bool(writing))
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check(at: int, name: str, writing: bool = False) -> bool:
    """Whether the directory ``at`` has a file ``name``.

    Raises:
        OSError: if it has something else under that name.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file in a directory")
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    _check(found, name, writing)
    return True


def _check(found: os.stat_result, name: str, writing: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{name} is {KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}, and not a regular file")
    if writing and found.st_nlink > 1:
        raise OSError(f"{name} has {found.st_nlink} names: what is written there would change another file as well")


def told(error: OSError, directory: Directory, name: str) -> OSError:
    """``error`` with the whole path."""
    path = os.path.join(os.fspath(directory), name)
    if error.errno is not None:
        return type(error)(error.errno, error.strerror, path)
    return OSError(f"{os.fspath(directory)}: {error}. Remove it, or use another directory")


__all__ = ["check", "make_directory", "open_directory", "open_handle", "open_in", "replace_in", "told"]
