"""What the runs of ``lightloop verify-resume`` have written down, and where two of them part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIELDS = ("data", "random", "loss")
"""What each batch met, in the order of cause and effect."""


@dataclass
class Trace:
    """One rank's lines."""

    batches: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By how many batches were done with this one."""
    rows: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Step and metrics of each row, the numbers to the bit."""
    saved: list[int] = field(default_factory=list)
    """After which batches a checkpoint was saved for the comparison."""
    end: int | None = None
    """How many batches there were, if it came to its end."""
    counts: dict[int, int] = field(default_factory=dict)
    """How many rows had been written when a checkpoint was saved."""

    @classmethod
    def read(cls, path: Path) -> Trace:
        """The trace in a file, to which several processes may have added one after another."""
        trace = cls()
        for line in path.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            if "row" in said:
                trace.rows.append((said["row"], said["metrics"]))
            elif "saved" in said:
                trace.saved.append(said["saved"])
                trace.counts[said["saved"]] = len(trace.rows)
            elif "end" in said:
                trace.end = said["end"]
            else:
                trace.batches[said["batch"]] = said
        return trace

    def rows_until(self, place: int) -> int:
        """How many rows were written before the checkpoint at ``place``."""
        return self.counts.get(place, 0)


@dataclass(frozen=True)
class Parting:
    """Where two runs part: a batch, and what it met."""

    batch: int
    epoch: int
    field: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f" of {', '.join(self.names)}" if self.names else ""
        what = {"data": "the data", "random": f"the random numbers{of}", "loss": "the loss"}[self.field]
        return f"{what}, in batch {self.batch} (epoch {self.epoch})"


def first_difference(one: Trace, other: Trace, until: int | None = None) -> Parting | None:
    """The first batch, up to ``until``, that did not meet the same, or that one of them has not."""
    for number in sorted({*one.batches, *other.batches}):
        if until is not None and number > until:
            return None
        a, b = one.batches.get(number, {}), other.batches.get(number, {})
        for name in FIELDS:
            if a.get(name) != b.get(name):
                parts = a.get(name, {}), b.get(name, {})
                kinds = (
                    [kind for kind in {**parts[0], **parts[1]} if parts[0].get(kind) != parts[1].get(kind)]
                    if (name == "random")
                    else []
                )
                return Parting(number, (a or b)["epoch"], name, tuple(kinds))
    return None


def rows_that_differ(one: Trace, other: Trace, until: int | None = None) -> Iterator[tuple[str, str]]:
    """Each metric that is not the same in all rows, with where it is not; "" for a row that one of them has not."""
    told = set()
    for number, (step, metrics) in enumerate(one.rows[:until]):
        there = other.rows[number] if number < len(other.rows) else (None, {})
        if there[0] != step:
            yield "", f"row {number + 1} of the metrics is of step {step}, and of {there[0]} where the run was resumed"
            return
        for name in {**metrics, **there[1]}:
            if metrics.get(name) != there[1].get(name) and name not in told:
                told.add(name)
                a, b = (float.fromhex(each[name]) if name in each else "absent" for each in (metrics, there[1]))
                yield name, f"metric {name} at step {step}: {a!r}, and {b!r} where the run was resumed"
    if until is None and len(other.rows) > len(one.rows):
        yield "", f"the resumed run has {len(other.rows) - len(one.rows)} rows of metrics too many"
