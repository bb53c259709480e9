"""The table at the end of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HEAD = ("plugin", "hook", "calls", "total s", "mean ms", "share", "changed")
NUMBERS = range(2, 6)


@dataclass
class Calls:
    """The calls of one plugin in one hook."""

    count: int = 0
    seconds: float = 0.0
    changed: Counter[str] = field(default_factory=Counter)
    """How many calls changed what."""

    def add(self, seconds: float, changed: Iterable[str]) -> None:
        """Take in one call."""
        self.count += 1
        self.seconds += seconds
        self.changed.update(changed)


def shares(calls: Mapping[tuple[str, str], Calls], seconds: float) -> dict[str, float]:
    """Of the ``seconds`` of a fit, the part that each plugin took, the largest first."""
    totals: Counter[str] = Counter()
    for (_, plugin), one in calls.items():
        totals[plugin] += one.seconds  # type: ignore[assignment]  # typed for whole numbers
    return {plugin: total / seconds for plugin, total in totals.most_common()}


def table(calls: Mapping[tuple[str, str], Calls], seconds: float) -> str:
    """Plugins by their share of the ``seconds``, and for each its hooks and what it changed there."""
    share = shares(calls, seconds)
    rows = [HEAD]
    for plugin in share:
        own = {hook: one for (hook, of), one in calls.items() if of == plugin}
        for hook, one in sorted(own.items(), key=lambda item: -item[1].seconds):
            changed = ", ".join(f"{what} {times}x" for what, times in one.changed.items())
            mean = f"{one.seconds / one.count * 1e3:.3f}"
            part = f"{one.seconds / seconds:.1%}"
            rows.append((plugin, hook, str(one.count), f"{one.seconds:.3f}", mean, part, changed))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_cell(row[index], index, widths[index]) for index in range(len(HEAD))).rstrip() for row in rows]
    whole = ", ".join(f"{plugin} {part:.1%}" for plugin, part in share.items())
    return "\n".join([*lines, f"{seconds:.3f} s in all, of which: {whole}"])


def _cell(text: str, index: int, width: int) -> str:
    return text.rjust(width) if index in NUMBERS else text.ljust(width)
