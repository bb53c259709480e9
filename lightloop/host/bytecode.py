"""What the code of a generator gives away before it has run."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any


def returns_nothing(generator: Callable[..., Any]) -> bool:
    """Whether it can end by returning, and then returns None wherever it does."""
    returned = [*_given(generator, "RETURN_VALUE"), *(each.argval is None for each in _constants(generator))]
    return bool(returned) and all(returned)


def yields_nothing(generator: Callable[..., Any]) -> bool:
    """Whether each of its yields is a bare ``yield``, as in a wrapper."""
    yielded = list(_given(generator, "YIELD_VALUE"))
    return bool(yielded) and all(yielded)


def _given(generator: Callable[..., Any], operation: str) -> Iterator[bool]:
    """For each such operation, whether the constant None is what it is done to."""
    for before, instruction in pairwise(dis.get_instructions(generator)):
        if instruction.opname == operation:
            is_none = before.opname.startswith("LOAD_CONST") and before.argval is None
            yield is_none and not instruction.is_jump_target  # else it may come from elsewhere


def _constants(generator: Callable[..., Any]) -> list[dis.Instruction]:
    """The returns of constants, which Python 3.12 and 3.13 have an operation for."""
    return [each for each in dis.get_instructions(generator) if each.opname == "RETURN_CONST"]
