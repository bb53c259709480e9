"""What the code of a generator gives away before it has run."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any


@lru_cache(4096)
def returns_nothing(generator: Callable[..., Any]) -> bool:
    """Whether it can end by returning, and then returns None wherever it does."""
    returned = [*_given(generator, "RETURN_VALUE"), *(each.argval is None for each in _constants(generator))]
    return bool(returned) and all(returned)


@lru_cache(4096)
def yields_nothing(generator: Callable[..., Any]) -> bool:
    """Whether each of its yields is a bare ``yield``, as in a wrapper."""
    yielded = list(_given(generator, "YIELD_VALUE"))
    return bool(yielded) and all(yielded)


PASSING = "LOAD_ STORE_FAST COPY SWAP PUSH_NULL POP_TOP MAKE_CELL NOP CACHE RESUME"
LEAVING = "RETURN_ YIELD_VALUE END_SEND JUMP_ PUSH_EXC_INFO POP_EXCEPT RERAISE CALL_INTRINSIC_1"
IDLE = (*PASSING.split(), *LEAVING.split())
"""How operations begin that only pass values on."""


def works_before_yield(generator: Callable[..., Any]) -> bool:
    """Whether it does anything before its first yield; what is not known counts as that."""
    return _works(generator, before=True)


def works_after_yield(generator: Callable[..., Any]) -> bool:
    """Whether it does anything after its last yield but pass on what was sent."""
    return _works(generator, before=False)


@lru_cache(4096)
def _works(generator: Callable[..., Any], before: bool) -> bool:
    names = [instruction.opname for instruction in dis.get_instructions(generator)]
    if "YIELD_VALUE" not in names:
        return True
    first, last = names.index("YIELD_VALUE"), len(names) - names[::-1].index("YIELD_VALUE")
    return not all(name.startswith(IDLE) for name in (names[:first] if before else names[last:]))


def _given(generator: Callable[..., Any], operation: str) -> Iterator[bool]:
    """For each such operation, whether the constant None is what it is done to."""
    for before, instruction in pairwise(dis.get_instructions(generator)):
        if instruction.opname == operation:
            is_none = before.opname.startswith("LOAD_CONST") and before.argval is None
            yield is_none and not instruction.is_jump_target  # else it may come from elsewhere


def _constants(generator: Callable[..., Any]) -> list[dis.Instruction]:
    """The returns of constants, which Python 3.12 and 3.13 have an operation for."""
    return [each for each in dis.get_instructions(generator) if each.opname == "RETURN_CONST"]
