"""Clip the gradients before each optimizer step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightloop import Key, Loop, Plugin, hookimpl, needs_closure, option

CLIPPED_NORM: Key[Tensor] = Key("clip.norm")
"""The total 2-norm of the stepping optimizer's gradients after clipping by norm; a scalar on their device."""


class Clip(Plugin):
    """Keep the gradients of the stepping optimizer small.

    By norm, they are scaled down together until their total 2-norm is at most ``limit`` (Pascanu et al. 2013); by
    value, each element is cut to ``[-limit, limit]``.
    """

    name = "clip"
    after = ("strategy", "precision", "grad_norm", "nonfinite")

    limit: float | None = option(
        None,
        "Largest total norm, or largest absolute value, that gradients may have; None and 0 are off.",
        flag="gradient_clip_val",
        aliases=("gradient_clip",),
    )
    algorithm: Literal["norm", "value"] = option(
        "norm", "What is limited: the total norm, or each value.", flag="gradient_clip_algorithm", enables=False
    )

    def check(self) -> None:
        if self.limit is None or not self.limit > 0:
            raise self.refuse("limit", "a number above 0")

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        for optimizer in loop.optimizers:
            if needs_closure(optimizer):
                raise ValueError(
                    f"gradient_clip_val cannot be kept with {type(optimizer).__name__}, which computes gradients anew "
                    "inside its step, where they are not clipped: leave one of the two out"
                )

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        assert self.limit is not None
        if self.algorithm == "value":
            torch._foreach_clamp_min_(loop.gradients, -self.limit)
            torch._foreach_clamp_max_(loop.gradients, self.limit)
            return
        norm = loop.grad_norm(2.0)
        factor = (self.limit / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(loop.gradients, factor)
        loop.stash[CLIPPED_NORM] = norm * factor
