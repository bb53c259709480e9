"""When to save a checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lightloop import Every, Loop

Rhythm = int | float | str | timedelta | Every | Mapping[int, Any] | None


class Trigger:
    """Decides when to save: in a rhythm, when the monitored metric improves, on request, and at the end of training.

    Args:
        every: the rhythm, if there is one.
        monitor: the metric, if there is one.
        mode: "max" or "min": whether it is better high or low.

    Raises:
        TypeError, ValueError: if ``every`` is no rhythm.
    """

    def __init__(self, every: Rhythm, monitor: str | None, mode: str) -> None:
        self.every = None if every is None else Every(every, "save_every")
        self.monitor, self.mode = monitor, mode
        self._due = self._evaluated = self._passed = self._said = False
        self._best: float | None = None
        self._updates: int | None = 0
        """How often the metric had been given a value when it was last looked at; None where that is not known."""

    def start(self, loop: Loop) -> None:
        """Begin with a fit."""
        if self.every is not None:
            self.every.start(loop)

    def ask(self) -> None:
        """Have a checkpoint made at the next boundary between batches; every rank must ask."""
        self._due = True

    def after_batch(self, loop: Loop) -> None:
        """A batch is done."""
        if self.every is not None and self.every.due(loop):
            self._due = True

    def after_epoch(self, loop: Loop) -> None:
        """An epoch is over."""
        self._evaluated = True
        if self.every is not None and self.every.due_at_epoch_end(loop):
            self._due = True

    def after_evaluation(self) -> None:
        """The metric may have another value."""
        self._evaluated = self._passed = True

    def missing(self, loop: Loop) -> str | None:
        """What is wrong where the metric should have been logged by now and was not, the first time that this is asked."""
        if self.monitor is None or self._said or self.monitor in loop.metrics.names() or loop.batch_idx:
            return None
        if not (self._passed or "validate" not in loop.eval_sources or self._ends(loop)):
            return None  # it may be one of validation, which is yet to come
        self._said = True
        names = loop.metrics.names()
        near = difflib.get_close_matches(self.monitor, names, 1)
        return (
            f"monitor={self.monitor!r} names no metric that has been logged"
            f"{f', did you mean {near[0]!r}?' if near else ''}; there are {', '.join(names) or 'none'}"
        )

    def due(self, loop: Loop) -> bool:
        """Whether to make one now, asked once at each boundary between batches."""
        improved = self._evaluated and self._improves(loop)
        due, self._due, self._evaluated = self._due or improved, False, False
        return due or self._ends(loop)

    def _ends(self, loop: Loop) -> bool:
        return loop.stopping or (loop.batch_idx == 0 and not loop.hook.epochs_remain(loop=loop))

    def score(self, value: float | None) -> float | None:
        """A value of the metric as a number that is better the higher it is."""
        return value if value is None or self.mode == "max" else -value

    def _improves(self, loop: Loop) -> bool:
        updates, value = loop.metrics.monitored(self.monitor) if self.monitor else (0, None)
        if not updates or updates == self._updates:
            return False
        self._updates = updates
        score = self.score(loop.world.broadcast(float(value)))  # type: ignore[arg-type]
        if score is not None and score == score and (self._best is None or score > self._best):
            self._best = score
            return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """Where the rhythm is, and the best value so far."""
        return {
            "every": None if self.every is None else self.every.state_dict(),
            "ranked_by": [self.monitor, self.mode],
            "best": self._best,
            "seen": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        monitor, mode = state.get("ranked_by", [self.monitor, self.mode])
        if (monitor, mode) == (self.monitor, self.mode):
            self._best, self._updates = state["best"], state["seen"]
        else:  # which is told as all is that differs
            self._best, self._updates = None, None
        if self.every is not None and state["every"] is not None:
            self.every.load_state_dict(state["every"])
