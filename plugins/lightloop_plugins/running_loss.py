"""The mean loss of the last steps, which is smoother than that of one batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from lightloop import Key, Loop, Plugin, hookimpl, option

RUNNING_LOSS: Key[Callable[[], Tensor | None]] = Key("running_loss.value")
"""Call it for the mean of the undivided losses over the last steps: a scalar where the losses are, None before the first
step. Nothing is computed until then."""


class RunningLoss(Plugin):
    """Keep the losses of the last ``steps`` applied steps; a step's is the mean over its window."""

    name = "running_loss"
    tags = ("watches",)
    default = True
    exposes: ClassVar[Mapping[str, str]] = {"running_loss": "number"}
    transient = ("_window", "_losses")

    steps: int = option(20, "Number of steps to average over.", enables=False)

    def validate(self) -> None:
        if self.steps < 1:
            raise self.invalid("steps", "a whole number from 1")
        self._window: dict[int, list[Tensor]] = {}
        self._losses: deque[list[Tensor]] = deque(maxlen=self.steps)

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._window, self._losses = {}, deque(maxlen=self.steps)
        loop.stash[RUNNING_LOSS] = self.value

    @hookimpl
    def after_backward(self, loop: Loop) -> None:
        loss = loop.loss
        assert loss is not None
        self._window.setdefault(loop.optimizer_idx or 0, []).append(loss.detach())

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        losses = self._window.pop(loop.optimizer_idx or 0, None)
        if losses:
            self._losses.append(losses)

    @hookimpl
    def on_step_skipped(self, loop: Loop) -> None:
        self._window.pop(loop.optimizer_idx or 0, None)

    def value(self) -> Tensor | None:
        """The mean over the last steps, on the device; None before the first."""
        if not self._losses:
            return None
        means = [
            torch.stack(losses).float().mean() if len(losses) > 1 else losses[0].float() for losses in self._losses
        ]
        return torch.stack([mean.reshape(()) for mean in means]).mean()

    @property
    def number(self) -> float:
        """The mean as a number; NaN before the first step."""
        value = self.value()
        return float("nan") if value is None else float(value)
