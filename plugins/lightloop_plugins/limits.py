"""Limit the number of training, validation, test and prediction batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator
from fractions import Fraction
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import Limited, size_of

log = logging.getLogger("lightloop")

FIELDS = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}
HELP = "Read so many batches of each {} loader (int) or such a fraction of them (float); 0 reads none, and its type decides: 1 is one batch, 1.0 is all."


class Limits(Plugin):
    """Limit the batches per loader; no further batch is fetched, and the last one read is the last of the epoch.

    Nothing is run at all where the limit is 0: neither the stage nor its hooks, nor a sanity pass.
    """

    name = "limits"
    tags = ("shortens",)
    before = ("accelerator", "strategy", "overfit", "validation")
    disturbs = ("gradients", "parameters")

    train: int | float = option(
        1.0, HELP.format("training"), flag="limit_train_batches", aliases=("train_percent_check",)
    )
    val: int | float = option(1.0, HELP.format("validation"), flag="limit_val_batches", aliases=("val_percent_check",))
    test: int | float = option(1.0, HELP.format("test"), flag="limit_test_batches", aliases=("test_percent_check",))
    predict: int | float = option(1.0, HELP.format("prediction"), flag="limit_predict_batches")

    def validate(self) -> None:
        for name in FIELDS.values():
            limit = getattr(self, name)
            if not limit >= 0 or (isinstance(limit, float) and limit > 1):
                raise self.invalid(name, "a whole number of batches from 0, or a fraction from 0.0 to 1.0")

    @hookimpl
    def setup(self, loop: Loop) -> None:
        for stage in list(loop.eval_sources):
            if getattr(self, FIELDS[stage]) == 0:
                del loop.eval_sources[stage]

    @hookimpl(wrapper=True)
    def epochs_remain(self, loop: Loop) -> Generator[None, bool, bool]:
        return (yield) and self.train != 0

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop, stage: str) -> Generator[None, Any, Any]:
        loader = yield
        field, size = FIELDS[stage], size_of(loader)
        limit = getattr(self, field)
        if isinstance(limit, float) and limit:
            return loader if limit == 1.0 else Limited(loader, self._part(size, limit, field))
        if limit == 1 and loop.world.is_main:
            log.info("limit_%s_batches=1 reads one batch; 1.0 would read all of them", field)
        return Limited(loader, int(limit))

    @hookimpl(wrapper=True)
    def epoch_batches(self, loop: Loop) -> Generator[None, float | None, float | None]:
        batches = yield
        if batches is None or self.train == 1.0 or batches == loop.num_batches:  # a length that is limited already
            return batches
        return min(batches, self.train) if isinstance(self.train, int) else math.inf

    def _part(self, size: int | None, fraction: float, field: str) -> int:
        """How many of ``size`` batches a fraction is, rounded down."""
        if size is None:
            raise self.invalid(field, "a whole number of batches where the loader does not know its length")
        count = int(size * Fraction(fraction).limit_denominator(10**6))
        if count == 0 < size:
            raise self.invalid(field, f"at least {1 / size:.3g}, since less rounds to 0 batches of {size}; 0 is none")
        return count
