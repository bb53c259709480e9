"""Warnings that point at the user's line of code, however deep in the library they are raised."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType

NOT_THE_USERS = {"lightloop", "pluggy", "torch", *sys.stdlib_module_names}
"""The packages that stand between a user's line and a warning; discovery adds those of the built-in plugins."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that led here: the line in a user's step, else the call of ``fit``.

    It is the innermost line outside of Lightloop, the module that calls this, torch and the standard library. From a
    thread of the library's own, it is the line at which the program itself is.
    """
    caller = sys._getframe(1)
    threads = [caller, sys._current_frames().get(threading.main_thread().ident or 0)]
    own = caller.f_code.co_filename if caller.f_globals.get("__name__") != "__main__" else None
    lines = (frame for start in threads for frame in _outwards(start) if _is_users(frame, own))
    frame = next(lines, caller)
    where = frame.f_globals
    registry = where.setdefault("__warningregistry__", {})
    name = where.get("__name__", "<unknown>")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, name, registry)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_users(frame: FrameType, own: str | None) -> bool:
    """Whether ``frame`` is neither of a package that stands between nor of the file ``own``; compiled hooks have no name."""
    name = frame.f_globals.get("__name__")
    return name is not None and name.partition(".")[0] not in NOT_THE_USERS and frame.f_code.co_filename != own


__all__ = ["NOT_THE_USERS", "warn"]
