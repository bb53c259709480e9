"""The error type of the checkpoint plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CheckpointError(Exception):
    """A checkpoint cannot be written, read or applied; the message says which, where, what was found and what to do."""


@contextmanager
def put_back(part: str, what: str) -> Iterator[None]:
    """While something takes its ``part`` of the state in ``what``: that it is none of its form is said of the checkpoint."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{what}: {part} cannot be put back: {type(error).__name__}: {error}") from error
