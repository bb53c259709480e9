"""JSON, written in one form, and read from a stranger with every claim checked."""

from __future__ import annotations

import json
from typing import Any

from lightloop_plugins.checkpoint.errors import CheckpointError

MAX_JSON = 16 * 2**20
"""Bytes of JSON that are read at most; 65,000 tensors, as many as one header can have, are spoken of in less."""
MAX_VALUES = 1_000_000
"""Numbers, texts, lists and objects that are read at most: with the bytes, this bounds the time that it takes."""
MAX_NESTING = 128
"""How deep lists and objects may be in one another."""

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=True, check_circular=False, separators=(",", ":"))


def to_json(value: Any) -> bytes:
    """The one form in which JSON is written: sorted keys would lose the order of a dict, so they stay as they are."""
    return _ENCODER.encode(value).encode("ascii")


def excess(data: bytes) -> str | None:
    """What of ``data`` is more than is read, if anything; this takes far less time than reading it."""
    if len(data) > MAX_JSON:
        return f"{len(data):,} bytes of JSON; {MAX_JSON:,} are read"
    values = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
    return f"up to {values:,} values in its JSON; {MAX_VALUES:,} are read" if values > MAX_VALUES else None


def from_json(data: bytes, what: str) -> Any:
    """Read JSON from a stranger: bounded in size, depth and numbers, without duplicate keys or constants such as NaN.

    Raises:
        CheckpointError: if it is not such; ``what`` names it.
    """
    if (more := excess(data)) is not None:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: it has {more}")
    try:
        value = json.loads(
            data.decode("ascii"),
            object_pairs_hook=_unique,
            parse_int=_whole,
            parse_constant=_constant,
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {error}") from None
    _check_depth(value, what)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError("a whole number does not fit in 64 bits")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _check_depth(value: Any, what: str) -> None:
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise CheckpointError(f"{what} is damaged or not Lightloop's: it is nested deeper than {MAX_NESTING}")
