"""How the commands print: tables, sizes, and what goes out as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as what is in them; an empty ``head`` is none."""
    lines = [*([list(head)] if head else []), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def printable(text: str) -> str:
    """``text`` without what would move the cursor of a terminal: names in a checkpoint are a stranger's."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def size(count: int) -> str:
    """So many bytes, for people."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(int(math.log(max(count, 1), 1000)), len(units) - 1)
    return f"{count} B" if not power else f"{count / 1000**power:.1f} {units[power]}"


def as_json(value: Any) -> str:
    """``value`` as JSON that every program reads; whatever has no form there is its text."""
    return json.dumps(_plain(value), indent=2, default=str)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity, and its keys are text."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
