"""Exceptions reach users as the objects that were raised: notes are added to them, and contexts leave them as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def add_note(error: BaseException, note: str) -> None:
    """Add ``note`` to ``error``, even if its class refuses new attributes, as a frozen dataclass does."""
    try:
        error.add_note(note)
    except Exception:
        notes = vars(error).get("__notes__")
        vars(error)["__notes__"] = [*(notes if isinstance(notes, list) else ()), note]


def notes_of(error: BaseException) -> list[str]:
    """The notes on ``error``."""
    return [str(note) for note in getattr(error, "__notes__", ())]


def context(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Like ``contextlib.contextmanager``, but it sets no attribute on exceptions, which frozen dataclasses refuse."""

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Context(function(*args, **kwargs))

    return make


class _Context(AbstractContextManager[T], Generic[T]):
    def __init__(self, around: Iterator[T]) -> None:
        self._around = around

    def __enter__(self) -> T:
        return next(self._around)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            if error is None:
                next(self._around)
            else:
                self._around.throw(error)  # type: ignore[attr-defined]
        except StopIteration as stop:
            return error is not None and stop is not error
        except BaseException as raised:
            if raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error):
                return False
            raise
        raise RuntimeError("the context yielded a second time")
