"""Sharpness-aware minimization with any optimizer."""

from __future__ import annotations

import torch
from torch import Tensor

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import parameters_of, refuse_closures, replay, searches_line, total_norm


class Sam(Plugin):
    """Step by the gradient at the worst weights nearby: those that lie ``rho`` up the gradient.

    Each step evaluates its window twice: at the weights, and at those climbed to. Then the weights are put back, and the
    optimizer steps with the second gradient. What follows a gradient, such as clipping, follows both. The weights are kept
    once more meanwhile, and the batches of a window until its step.

    Source: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization (2021, arXiv:2010.01412);
    ``adaptive``: Kwon et al., ASAM (2021, arXiv:2102.11600).
    """

    name = "sam"
    works_with = ">=0.1"
    disturbs = ("gradients", "parameters", "random")

    rho: float = option(0.0, "How far to climb before the gradient is taken; 0 is off.")
    adaptive: bool = option(False, "Climb in proportion to the size of each weight.", enables=False)

    def validate(self) -> None:
        if self.rho < 0:
            raise self.invalid("rho", "a number from 0")

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if self.rho == 0:
            loop.opt_out(self)
            return
        if "manual" in loop.step_arguments:
            raise ValueError(
                "sam_rho cannot go forward again for a training_step that optimizes by itself: leave one out"
            )
        refuse_closures(loop, "sam_rho", "which evaluates the loss by itself: leave one of them out", searches_line)
        loop.keep_windows()

    @hookimpl
    def step(self, loop: Loop) -> bool | None:
        """Have the window evaluated at the climbed weights; None lets the optimizer step, False says that it must not."""
        own = [parameter for parameter in parameters_of(loop.optimizer) if parameter.grad is not None]
        before = [parameter.detach().clone() for parameter in own]
        try:
            self._climb(own)
            replay(loop)
        finally:
            with torch.no_grad():
                for parameter, old in zip(own, before, strict=True):
                    parameter.copy_(old)
        return None if loop.skip_step_reason is None else False

    @torch.no_grad()
    def _climb(self, own: list[Tensor]) -> None:
        gradients = [parameter.grad for parameter in own if parameter.grad is not None]
        sizes = [parameter.abs() for parameter in own] if self.adaptive else None
        scaled = gradients if sizes is None else [one * size for one, size in zip(gradients, sizes, strict=True)]
        norm = total_norm(scaled, 2.0)
        norm = getattr(norm, "full_tensor", lambda whole=norm: whole)()  # of parameters that are sharded
        for index, parameter in enumerate(own):
            climb = scaled[index] if sizes is None else scaled[index] * sizes[index]
            parameter.add_(climb * (self.rho / (norm + 1e-12)).to(parameter.device, parameter.dtype))
