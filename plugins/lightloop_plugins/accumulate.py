"""Accumulate gradients over several batches before each optimizer step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import warn


class Accumulate(Plugin):
    """Close the window after ``batches`` batches, or after the last batch of an epoch, whichever comes first.

    The gradient is the mean over the batches that are really in the window, however many they are. A schedule
    ``{epoch: batches}`` applies from each of its epochs on; before the first of them, every batch steps. Where a batch
    is cut into pieces, a window of several batches closes after the last piece of its last batch.
    """

    name = "accumulate"
    before = ("tbptt",)
    exposes: ClassVar[Mapping[str, str]] = {"accumulate_grad_batches": "factor"}
    disturbs = ("gradients", "parameters")
    transient = ("schedule", "factor", "_size", "_warned")

    batches: int | Mapping[int, int] = option(
        1,
        "Batches per optimizer step, or a schedule {epoch: batches}, epochs counted from 0.",
        flag="accumulate_grad_batches",
    )

    def validate(self) -> None:
        self.schedule = dict(self.batches) if isinstance(self.batches, Mapping) else {0: self.batches}
        for epoch, batches in self.schedule.items():
            if type(epoch) is not int or type(batches) is not int or epoch < 0 or batches < 1:
                raise self.invalid("batches", "a whole number from 1, or a schedule {epoch from 0: batches from 1}")
        if not self.schedule:
            raise self.invalid("batches", "a schedule with at least one epoch")
        self.factor = self.schedule.get(0, 1)
        self._size = math.inf
        self._warned = False

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._warned = False

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        self.factor = self._factor(loop.epoch)
        self._size = size = loop.hook.epoch_batches(loop=loop, epoch=loop.epoch) or math.inf
        if size < self.factor and not self._warned:
            self._warned = True
            warn(
                f"accumulate_grad_batches={self.factor} is more than the {size:.0f} batches of an epoch: "
                "each epoch is one window, and its gradient the mean over those",
            )

    @hookimpl
    def epoch_steps(self, loop: Loop, epoch: int) -> float:
        batches = loop.hook.epoch_batches(loop=loop, epoch=epoch)
        return math.inf if batches in (None, math.inf) else math.ceil(batches / self._factor(epoch))

    @hookimpl
    def hold_step(self, loop: Loop) -> bool | None:
        if self.factor == 1:  # each piece of a batch may be a window of its own
            return None
        full = loop.window.batches >= self.factor or loop.is_last_batch
        return None if full and loop.piece_idx == len(loop.pieces) - 1 else True

    @hookimpl
    def plan_window(self, loop: Loop) -> int:
        rest = self.factor - max(0, loop.window.batches - 1)
        return int(max(1, min(rest, self._size - loop.batch_idx)))

    def _factor(self, epoch: int) -> int:
        started = [start for start in self.schedule if start <= epoch]
        return self.schedule[max(started)] if started else 1
