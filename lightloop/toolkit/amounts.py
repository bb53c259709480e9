"""Amounts as people write them: ``"500 batches"``, ``"15 min"``, ``"00:02:30:00"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

WORDS = {
    "steps": ("step", "steps"),
    "batches": ("batch", "batches"),
    "epochs": ("epoch", "epochs"),
    "seconds": ("s", "sec", "second", "seconds"),
    "minutes": ("min", "minute", "minutes"),
    "hours": ("h", "hour", "hours"),
    "days": ("d", "day", "days"),
}
"""Each unit and the words that mean it."""
UNITS = {word: unit for unit, words in WORDS.items() for word in words}
COUNTED = ("steps", "batches", "epochs")
"""The units that are no time."""


def read_amount(text: str) -> tuple[str, float] | None:
    """The unit and the count in ``text``, every time in seconds; a count that is left out is 1. None if it is no amount."""
    if (clock := re.fullmatch(r"(\d+):(\d{1,2}):(\d{1,2}):(\d{1,2})", text.strip())) is not None:
        days, hours, minutes, seconds = map(int, clock.groups())
        return "seconds", timedelta(days, seconds, 0, 0, minutes, hours).total_seconds()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)?\s*([a-z]+)", text.strip().lower())
    if found is None or (unit := UNITS.get(found[2])) is None:
        return None
    count = float(found[1] or 1)
    return (unit, count) if unit in COUNTED else ("seconds", timedelta(**{unit: count}).total_seconds())


def seconds_of(span: float | str | timedelta | Mapping[str, float]) -> float:
    """A span of time in seconds: from seconds, ``"15 min"``, ``"DD:HH:MM:SS"``, a timedelta, or its arguments in a mapping.

    Raises:
        TypeError, ValueError: if it is none of these.
    """
    if isinstance(span, str):
        amount = read_amount(span)
        if amount is None or amount[0] != "seconds":
            raise ValueError(f"a time in text must be like '90 s', '15 min', '2 h' or 'DD:HH:MM:SS'; it is {span!r}")
        return amount[1]
    if isinstance(span, Mapping):
        return timedelta(**span).total_seconds()
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


__all__ = ["read_amount", "seconds_of"]
