"""Did you mean: what an error proposes for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names what in ``known`` looks most like ``name``; empty where nothing does."""
    close = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(each) for each in close)}?" if close else ""
