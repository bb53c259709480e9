"""Find a learning rate by a range test."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightloop import Loop, Plugin, Trainer, hookimpl, option
from lightloop_plugins._trial import Trial, run

SMOOTHING = 0.98


@dataclass
class LRFound:
    """What a range test found: for each step its rate, its loss, and the smoothed loss."""

    lrs: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate at which the smoothed loss falls most steeply over the logarithm of the rate.

        None where fewer than three finite points are left after so many were skipped.
        """
        points = list(zip(self.lrs, self.smoothed, strict=True))[skip_begin : len(self.lrs) - skip_end]
        points = [(lr, loss) for lr, loss in points if math.isfinite(loss)]
        if len(points) < 3:
            return None
        rates = torch.tensor([math.log(lr) for lr, _ in points], dtype=torch.float64)
        losses = torch.tensor([loss for _, loss in points], dtype=torch.float64)
        (slope,) = torch.gradient(losses, spacing=(rates,))
        return points[int(slope.argmin())][0]

    def plot(self, path: str | Path) -> None:
        """Draw loss over rate, with the suggestion, into an image file; needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(f"LRFound.plot needs matplotlib ({error}): pip install lightloop[examples]") from error
        figure = Figure(layout="constrained")
        axes = figure.subplots()
        axes.plot(self.lrs, self.losses, alpha=0.4, label="loss")
        axes.plot(self.lrs, self.smoothed, label="smoothed")
        if (best := self.suggestion()) is not None:
            axes.axvline(best, linestyle="--", label=f"suggestion {best:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.legend()
        figure.savefig(path)


def lr_find(
    trainer: Trainer,
    module: nn.Module,
    train: Any = None,
    *,
    min_lr: float = 1e-8,
    max_lr: float = 1.0,
    steps: int = 100,
    mode: Literal["exponential", "linear"] = "exponential",
    diverged: float | None = 4.0,
) -> LRFound:
    """Run a learning-rate range test (Smith 2017): train a copy of ``module`` with a growing rate and record the loss.

    Everything that shapes a step is as in ``trainer``: device, precision, accumulation, clipping. Nothing is left of the
    test: not in the module, its optimizers, the trainer and its plugins, the random numbers, nor the order of the data.

    Args:
        trainer: is going to train.
        module: is going to be trained.
        train: as for ``trainer.fit``; it must be readable more than once.
        min_lr: the rate of the first step.
        max_lr: the rate of the last one.
        steps: how many there are; each loss is read, so that the host waits at every step.
        mode: whether rates grow by a factor or by a summand.
        diverged: the test ends when the smoothed loss is above so many times its lowest; None: only at NaN or infinity.

    Raises:
        ValueError, TypeError: if rates or steps make no sense, or the data can be read only once.
    """
    if not 0 < min_lr < max_lr:
        raise ValueError(f"lr_find needs 0 < min_lr < max_lr; they are {min_lr} and {max_lr}")
    if steps < 2:
        raise ValueError(f"lr_find needs 2 steps or more; steps is {steps}")
    if mode not in ("exponential", "linear"):
        raise ValueError(f"lr_find: mode must be 'exponential' or 'linear'; it is {mode!r}")
    shares = [step / (steps - 1) for step in range(steps)]
    if mode == "linear":
        rates = [min_lr + (max_lr - min_lr) * share for share in shares]
    else:
        rates = [min_lr * (max_lr / min_lr) ** share for share in shares]
    test = RangeTest()
    test.rates, test.diverged = rates, diverged
    run(trainer, copy.deepcopy(module), train, test)
    return test.found


class RangeTest(Trial):
    """Sets the rate of each step, and keeps the mean loss of its window."""

    name = "lr_range_test"

    def validate(self) -> None:
        self.rates: list[float] = []
        self.diverged: float | None = None
        self.found = LRFound()
        self._losses: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._mean = 0.0

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._set_rate(loop)

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        if loop.loss is not None and not loop.replaying:
            loss = loop.loss.detach()
            self._losses.append(loss)
            self._weights.append(torch.as_tensor(1 if loop.weight is None else loop.weight).detach().to(loss))

    def go_on(self, loop: Loop) -> bool:
        found = self.found
        weights = torch.stack(self._weights)
        loss = float((torch.stack(self._losses) * weights).sum() / weights.sum())
        self._losses.clear()
        self._weights.clear()
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        found.lrs.append(self.rates[len(found.lrs)])
        found.losses.append(loss)
        found.smoothed.append(self._mean / (1 - SMOOTHING ** len(found.losses)))
        if len(found.lrs) == len(self.rates) or not math.isfinite(loss):
            return False
        best = min(found.smoothed)
        if self.diverged is not None and found.smoothed[-1] - best > (self.diverged - 1) * abs(best):
            return False
        self._set_rate(loop)
        return True

    def _set_rate(self, loop: Loop) -> None:
        for optimizer in loop.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rates[len(self.found.lrs)]


class LRFind(Plugin):
    """Before a fit, run :func:`lr_find` and set the module's attribute to what it suggests.

    The module's ``configure_optimizers`` has to use that attribute.
    """

    name = "lr_find"
    tags = ("searches",)
    transient = ("found",)
    after = ("accelerator", "strategy")
    disturbs = ("gradients", "parameters")

    attribute: str | bool | None = option(
        None,
        "Find a learning rate before training, and set this attribute of the module to it; True is 'lr'.",
        flag="auto_lr_find",
    )

    def validate(self) -> None:
        self.found: LRFound | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage != "fit":
            return
        name = self.attribute if isinstance(self.attribute, str) else "lr"
        if not hasattr(loop.module, name):
            raise ValueError(
                f"auto_lr_find={self.attribute!r}: {type(loop.module).__name__} has no attribute {name!r} to set; name the one "
                "that configure_optimizers uses"
            )
        if loop.world.size > 1:
            raise ValueError("auto_lr_find works in one process: run lr_find first, and train with what it suggests")
        assert loop.train_source is not None
        self.found = lr_find(loop.trainer, loop.module, loop.train_source())
        if (best := self.found.suggestion()) is None:
            raise ValueError(
                "auto_lr_find: the loss diverged too soon to suggest a rate; run lr_find with a smaller max_lr"
            )
        setattr(loop.module, name, best)
