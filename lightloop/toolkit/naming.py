"""Names of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

V = TypeVar("V")


def apart(metrics: Mapping[str, V], taken: str) -> Mapping[str, V]:
    """``metrics`` without the name ``taken``, which a logger has for itself: a metric of that name gets an underscore.

    No two metrics come to one name: ``step`` becomes ``step_``, ``step_`` becomes ``step__``, and so on.
    """
    if not any(name.startswith(taken) for name in metrics):
        return metrics
    return {f"{name}_" if name.rstrip("_") == taken else name: value for name, value in metrics.items()}
