"""Add noise to the gradients."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from lightloop import Loop, Plugin, hookimpl, option


class Noise(Plugin):
    """Add Gaussian noise of variance ``eta / (1 + step) ** gamma`` to each gradient.

    It is added in ``before_step``, where the gradient is whole: of all processes, and unscaled. All processes draw the same.

    Source: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks (2015).
    """

    name = "noise"
    after = ("clip",)
    works_with = ">=0.1"
    disturbs = ("gradients", "parameters")
    state = ("_generator",)

    eta: float = option(0.0, "Variance of the noise at the first step; 0 is off.")
    gamma: float = option(0.55, "How fast the variance falls with the steps.", enables=False)
    seed: int = option(0, "Seed of the noise, which is drawn from a generator of its own.", enables=False)

    def validate(self) -> None:
        if self.eta < 0:
            raise self.invalid("eta", "a number from 0")
        self._generator: torch.Tensor | None = None

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._generator = torch.Generator().manual_seed(self.seed).get_state()

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        assert self._generator is not None
        generator = torch.Generator()  # made anew, since a generator does not pickle
        generator.set_state(self._generator)
        deviation = (self.eta / (1 + loop.global_step) ** self.gamma) ** 0.5
        for gradient in loop.gradients:
            noise = torch.randn(gradient.shape, generator=generator).to(gradient.device, gradient.dtype)
            if isinstance(gradient, DTensor):  # a part of a gradient, under fsdp: its part of the noise
                noise = distribute_tensor(noise, gradient.device_mesh, gradient.placements)
            gradient.add_(noise, alpha=deviation)
        self._generator = generator.get_state()
