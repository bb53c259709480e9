"""Log the learning rates."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from lightloop import Loop, Plugin, hookimpl, option


class LrMonitor(Plugin):
    """Log the learning rate of each step, or that at the start of each epoch.

    One optimizer with one parameter group logs ``lr``; several optimizers ``lr/0``, ``lr/1``; several groups the group's
    ``name`` or number after it: ``lr/0/1``, or ``lr/1`` where there is one optimizer. Groups of one name have both.
    """

    name = "lr_monitor"
    tags = ("watches",)
    before = ("log_every",)

    per: Literal["step", "epoch"] | None = option(
        None, "Log the learning rates at each step or each epoch.", flag="log_lr"
    )

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        loop.opt_out(self, "before_epoch" if self.per != "epoch" else "before_step")

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        for index in range(len(loop.optimizers)):
            self._log(loop, index, on_epoch=True)

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        for index in loop.window.members:
            self._log(loop, index, on_epoch=False)

    def _log(self, loop: Loop, index: int, on_epoch: bool) -> None:
        several = len(loop.optimizers) > 1
        for name, group in zip(names(loop.optimizers[index]), loop.optimizers[index].param_groups, strict=True):
            parts = ["lr", *([str(index)] if several else []), *([name] if name else [])]
            rate = (
                group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
            )  # schedules change it in place
            loop.log("/".join(parts), rate, on_epoch=on_epoch, reduce="last", weight=1)


def names(optimizer: Optimizer) -> list[str]:
    """What tells the parameter groups apart; an empty name where there is one."""
    if len(optimizer.param_groups) == 1:
        return [""]
    found = [str(group.get("name", index)) for index, group in enumerate(optimizer.param_groups)]
    return [f"{name}/{index}" if found.count(name) > 1 else name for index, name in enumerate(found)]
