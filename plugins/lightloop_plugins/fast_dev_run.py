"""Run every part of a training script on a few batches, to find its errors within seconds."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lightloop import Loop, Plugin, evaluate, hookimpl, option
from lightloop.toolkit import Limited


class FastDevRun(Plugin):
    """Train on ``batches`` batches and at most as many steps, then validate on as many; test and predict likewise.

    It writes nothing and stops for no metric: loggers, checkpoints and early stopping are left out, and so are limits,
    durations, the sanity pass and the rhythm of validation, whatever they were set to.
    """

    name = "fast_dev_run"
    tags = ("validation", "bounds")
    before = ("checkpoint",)
    replaces = ("bounds", "logger", "logs", "saves", "shortens", "stops", "validates")
    disturbs = ("gradients", "parameters")
    transient = ("count",)

    batches: bool | int = option(
        False,
        "Run only this many batches of every stage and write no files; True is one.",
        flag="fast_dev_run",
        switch=True,
    )

    def validate(self) -> None:
        if self.batches < 0 or self.batches is False:
            raise self.invalid("batches", "a whole number from 1, or True for one")
        self.count = int(self.batches)

    @hookimpl(wrapper=True, tryfirst=True)  # around whoever shards or seeds a loader
    def prepare_loader(self, loop: Loop) -> Generator[None, Any, Any]:
        return Limited((yield), self.count)

    @hookimpl
    def epochs_remain(self, loop: Loop) -> bool:
        return loop.epoch < 1

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        if loop.global_step >= self.count:
            loop.end_epoch(reason := f"fast_dev_run={self.count} steps are done")
            loop.skip_batch(reason)  # of a batch that is cut into pieces, the rest

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        if loop.epoch_finished and "validate" in loop.eval_sources:
            evaluate(loop, "validate")
