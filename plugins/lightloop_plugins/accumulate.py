"""Accumulate gradients over several batches before each optimizer step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from lightloop import Loop, Plugin, hookimpl, option, warn


class Accumulate(Plugin):
    """Close the window after ``batches`` batches, or after the last batch of an epoch, whichever comes first.

    The gradient is the mean over the batches that are really in the window, however many they are. A schedule
    ``{epoch: batches}`` applies from each of its epochs on; before the first of them, every batch steps. Where a batch
    is cut into pieces, a window of several batches closes after the last piece of its last batch.
    """

    name = "accumulate"
    before = ("tbptt",)
    offers: ClassVar[Mapping[str, str]] = {"accumulate_grad_batches": "factor"}
    disturbs = ("gradients", "parameters")
    transient = ("schedule", "factor", "_warned")

    batches: int | Mapping[int, int] = option(
        1,
        "Batches per optimizer step, or a schedule {epoch: batches}, epochs counted from 0.",
        flag="accumulate_grad_batches",
    )

    def check(self) -> None:
        self.schedule = dict(self.batches) if isinstance(self.batches, Mapping) else {0: self.batches}
        for epoch, batches in self.schedule.items():
            if type(epoch) is not int or type(batches) is not int or epoch < 0 or batches < 1:
                raise self.refuse("batches", "a whole number from 1, or a schedule {epoch from 0: batches from 1}")
        if not self.schedule:
            raise self.refuse("batches", "a schedule with at least one epoch")
        self.factor = self.schedule.get(0, 1)
        self._warned = False

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._warned = False

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        self.factor = self._factor(loop.epoch)
        size = loop.num_batches
        if size is not None and size < self.factor and not self._warned:
            self._warned = True
            warn(
                f"accumulate_grad_batches={self.factor} is more than the {size} batches of an epoch: "
                "each epoch is one window, and its gradient the mean over those",
            )

    @hookimpl
    def epoch_steps(self, loop: Loop, epoch: int) -> float:
        return math.inf if loop.num_batches is None else math.ceil(loop.num_batches / self._factor(epoch))

    @hookimpl
    def hold_step(self, loop: Loop) -> bool | None:
        window = loop.window
        if not window.contributions:
            window.planned = self._size(loop)
        if self.factor == 1:  # each piece of a batch may be a window of its own
            return None
        full = window.batches >= self.factor or loop.is_last_batch
        return None if full and loop.piece_idx == len(loop.pieces) - 1 else True

    def _factor(self, epoch: int) -> int:
        started = [start for start in self.schedule if start <= epoch]
        return self.schedule[max(started)] if started else 1

    def _size(self, loop: Loop) -> int:
        """How many batches the window will hold, as far as that is known."""
        rest = self.factor - max(0, loop.window.batches - 1)
        left = loop.num_batches
        return max(1, rest if left is None else min(rest, left - loop.batch_idx))
