"""Did you mean: what an error proposes for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names what in ``known`` looks most like ``name``; empty where nothing does."""
    close = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(each) for each in close)}?" if close else ""


def differ_by_a_letter(one: str, other: str) -> bool:
    """Whether one letter too many, one missing, another one, or two exchanged make ``other`` of ``one``."""
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    same = next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    a, b = one[same:], other[same:]
    return a[1:] in (b, b[1:]) or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
