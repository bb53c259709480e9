"""How long to train: between so many and so many epochs or steps."""

from __future__ import annotations

import math
from collections.abc import Generator

from lightloop import Loop, Plugin, hookimpl, option


class Duration(Plugin):
    """Bound training by epochs and by applied optimizer steps; a maximum wins over a minimum.

    With minimums alone, training ends with the epoch in which they are met. ``-1`` as a maximum is no bound.
    """

    name = "duration"
    before = ("checkpoint",)

    max_epochs: int | None = option(
        None, "Train at most so many epochs; -1 is no bound.", flag="max_epochs", aliases=("max_nb_epochs",)
    )
    min_epochs: int | None = option(
        None, "Let no request stop training before so many epochs.", flag="min_epochs", aliases=("min_nb_epochs",)
    )
    max_steps: int | None = option(None, "Train at most so many optimizer steps; -1 is no bound.", flag="max_steps")
    min_steps: int | None = option(
        None, "Let no request stop training before so many optimizer steps.", flag="min_steps"
    )

    def check(self) -> None:
        for name in ("max_epochs", "max_steps", "min_epochs", "min_steps"):
            lowest = -1 if name.startswith("max") else 0
            if (value := getattr(self, name)) is not None and value < lowest:
                raise self.refuse(name, f"a whole number from {lowest}")

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        yield  # a resumed run may have all its steps already
        self._stop_at_max(loop)

    @hookimpl
    def epochs_remain(self, loop: Loop) -> bool:
        return self._remain(loop.epoch, loop.global_step)

    @hookimpl
    def total_steps(self, loop: Loop) -> float:
        bound = math.inf if self.max_steps in (None, -1) else self.max_steps
        epoch, steps = 0, 0.0
        while steps < bound and self._remain(epoch, steps):
            more = loop.hook.epoch_steps(loop=loop, epoch=epoch)
            if not more or more == math.inf or (bound == math.inf and self._endless()):
                return bound
            epoch, steps = epoch + 1, steps + more
        return min(steps, bound)

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        self._stop_at_max(loop)

    @hookimpl
    def may_stop(self, loop: Loop) -> bool | None:
        return None if self._steps_are_up(loop) or self._minimums_met(loop) else False

    def _remain(self, epoch: int, steps: float) -> bool:
        if self._endless():
            return True
        if self.max_epochs is not None:
            return epoch < self.max_epochs
        return epoch < max(1, self.min_epochs or 0) or steps < (self.min_steps or 0)

    def _endless(self) -> bool:
        """Whether the number of epochs has no bound of its own."""
        return self.max_epochs == -1 or (self.max_epochs is None and self.max_steps is not None)

    def _stop_at_max(self, loop: Loop) -> None:
        if self._steps_are_up(loop):
            loop.stop(reason := f"max_steps={self.max_steps} reached")
            loop.skip_batch(reason)  # a batch that is cut into pieces may reach it before its last one

    def _steps_are_up(self, loop: Loop) -> bool:
        return self.max_steps not in (None, -1) and loop.global_step >= self.max_steps

    def _minimums_met(self, loop: Loop) -> bool:
        finished = loop.epoch + (loop.is_last_batch and loop.batch_idx > 0)
        return finished >= (self.min_epochs or 0) and loop.global_step >= (self.min_steps or 0)
