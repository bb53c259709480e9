"""Set the minimum and maximum number of epochs and steps."""

from __future__ import annotations

import math
from collections.abc import Generator

from lightloop import Loop, Plugin, hookimpl, option


class Duration(Plugin):
    """Limit training by epochs and by applied optimizer steps; a maximum takes precedence over a minimum.

    With minimums alone, training ends with the epoch in which they are met, unless another plugin (``max_time``) decides how
    long it goes on. ``-1`` as a maximum is no bound.
    """

    name = "duration"
    tags = ("bounds",)
    before = ("checkpoint", "time_limit")

    max_epochs: int | None = option(
        None, "Maximum number of epochs; -1 is unlimited.", flag="max_epochs", aliases=("max_nb_epochs",)
    )
    min_epochs: int | None = option(
        None,
        "Minimum number of epochs; requests to stop wait until then.",
        flag="min_epochs",
        aliases=("min_nb_epochs",),
    )
    max_steps: int | None = option(None, "Maximum number of optimizer steps; -1 is unlimited.", flag="max_steps")
    min_steps: int | None = option(
        None, "Minimum number of optimizer steps; requests to stop wait until then.", flag="min_steps"
    )

    def validate(self) -> None:
        for name in ("max_epochs", "max_steps", "min_epochs", "min_steps"):
            lowest = -1 if name.startswith("max") else 0
            if (value := getattr(self, name)) is not None and value < lowest:
                raise self.invalid(name, f"a whole number from {lowest}")

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        yield  # a resumed run may have all its steps already
        self._stop_at_max(loop)

    @hookimpl(specname="epochs_remain")
    def below_maximum(self, loop: Loop) -> bool | None:
        if self.max_epochs is None and self.max_steps is None:
            return None
        return self.max_epochs in (None, -1) or loop.epoch < self.max_epochs

    @hookimpl(wrapper=True)
    def epochs_remain(self, loop: Loop) -> Generator[None, bool, bool]:
        remain = yield
        return remain or self._below_minimum(loop.epoch, loop.global_step)

    @hookimpl(specname="total_steps")
    def steps_to_maximum(self, loop: Loop) -> float | None:
        bound = math.inf if self.max_steps in (None, -1) else self.max_steps
        if self.max_epochs in (None, -1):
            return None if self.max_epochs is None and self.max_steps is None else bound
        epoch, steps = 0, 0.0
        while steps < bound and epoch < self.max_epochs:
            more = loop.hook.epoch_steps(loop=loop, epoch=epoch)
            if not more or more == math.inf:
                return bound
            epoch, steps = epoch + 1, steps + more
        return min(steps, bound)

    @hookimpl(wrapper=True)
    def total_steps(self, loop: Loop) -> Generator[None, float, float]:
        steps = yield
        epoch, least = 0, 0.0
        while least < math.inf and self._below_minimum(epoch, least):
            epoch, least = epoch + 1, least + (loop.hook.epoch_steps(loop=loop, epoch=epoch) or math.inf)
        return max(steps, least)

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        self._stop_at_max(loop)

    @hookimpl
    def may_stop(self, loop: Loop) -> bool | None:
        return None if self._steps_are_up(loop) or self._minimums_met(loop) else False

    def _below_minimum(self, epoch: int, steps: float) -> bool:
        """Whether a minimum asks for another epoch, where there is no maximum."""
        if self.max_epochs is not None or self.max_steps is not None:
            return False
        return epoch < (self.min_epochs or 0) or steps < (self.min_steps or 0)

    def _stop_at_max(self, loop: Loop) -> None:
        if self._steps_are_up(loop):
            loop.stop(reason := f"max_steps={self.max_steps} reached")
            loop.skip_batch(reason)  # a batch that is cut into pieces may reach it before its last one

    def _steps_are_up(self, loop: Loop) -> bool:
        return self.max_steps not in (None, -1) and loop.global_step >= self.max_steps

    def _minimums_met(self, loop: Loop) -> bool:
        finished = loop.epoch + (loop.is_last_batch and loop.batch_idx > 0)
        return finished >= (self.min_epochs or 0) and loop.global_step >= (self.min_steps or 0)
