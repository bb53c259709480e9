"""Compute gradients only for the parameters of the current optimizer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch import Tensor

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import frozen, parameters_of


class Toggle(Plugin):
    """While one of several optimizers trains, turn off gradients of parameters that belong only to the others.

    Without it, the loss of a GAN's discriminator would fill the gradients of the generator, too. The flags are put back
    after each forward and after each backward (which runs forward again where activations are checkpointed), however
    they end. Parameters that somebody froze stay frozen; those that several optimizers share require gradients for
    each of them. It bows out where there is one optimizer, or one loss for all of them.
    """

    name = "toggle"
    before = ("strategy",)
    default = True
    transient = ("_others",)

    on: bool = option(
        True,
        "With several optimizers, compute gradients only for the parameters of the current optimizer.",
        flag="toggle_optimizers",
        switch=True,
    )

    def validate(self) -> None:
        self._others: list[list[Tensor]] = []

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if len(loop.windows) < 2:
            loop.opt_out(self)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        owned = [dict.fromkeys(parameters_of(optimizer)) for optimizer in loop.optimizers]
        every = {parameter: None for own in owned for parameter in own}
        self._others = [[other for other in every if other not in own] for own in owned]

    @hookimpl(wrapper=True)
    def forward(self, loop: Loop) -> Generator[None, Any, Any]:
        with frozen(self._others_of(loop)):
            return (yield)

    @hookimpl(wrapper=True)
    def backward(self, loop: Loop) -> Generator[None, Any, Any]:
        with frozen(self._others_of(loop)):
            return (yield)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._others = []

    def _others_of(self, loop: Loop) -> list[Tensor]:
        return [] if loop.optimizer_idx is None else self._others[loop.optimizer_idx]
