"""Keep an exponential moving average of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightloop import Loop, Plugin, hookimpl, option


class EMA(Plugin):
    """Average the weights over the steps: ``average = decay * average + (1 - decay) * weights`` (Polyak and Juditsky 1992).

    The first update takes the weights as they are, as :class:`torch.optim.swa_utils.AveragedModel` does, so there is no
    bias to correct. With ``warmup`` the n-th update uses ``min(decay, (1 + n) / (10 + n))``, which forgets the first
    weights sooner. There is one update for each applied step, however many optimizers took part in it, and none for a
    step that was skipped. 16-bit weights are averaged in float32.

    Attributes:
        average: the averaged tensors by their names in the module; empty before the first update.
        updates: how many there were.
    """

    name = "ema"
    tags = ("averages",)
    before = ("validation", "checkpoint")
    state = ("average", "updates")
    transient = ("_weights", "_aside", "_stepped_in")

    decay: float | None = option(
        None, "How much of the average an update keeps, from 0 to below 1; None, where the plugin is listed, is 0.999."
    )
    every: int = option(1, "Steps between two updates.", enables=False)
    warmup: bool = option(False, "Start with a smaller decay that grows with the number of updates.", enables=False)
    buffers: bool = option(
        False,
        "Average floating-point buffers (running statistics) too; otherwise the module's are used.",
        enables=False,
    )
    device: str | None = option(
        None, "Where the average is kept ('cpu' costs a copy per update); None is beside the weights.", enables=False
    )
    in_validation: bool = option(False, "Validate with the averaged weights.", flag="ema_validate", enables=False)
    keep: bool = option(False, "Leave the averaged weights in the module after training.", enables=False)

    def validate(self) -> None:
        if self.decay is not None and not 0 <= self.decay < 1:
            raise self.invalid("decay", "a number from 0 to below 1")
        if self.every < 1:
            raise self.invalid("every", "a whole number from 1")
        if self.device is not None:
            try:
                torch.device(self.device)
            except RuntimeError:
                raise self.invalid("device", "a device that torch knows") from None
        self.average: dict[str, Tensor] = {}
        self.updates = 0

    def reset(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self._aside: list[Tensor] = []
        self._stepped_in: int | None = None

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._weights = averaged_tensors(loop.module, self.buffers)
        self.average, self.updates = {}, 0
        if not self.in_validation:
            loop.opt_out(self, "before_evaluation")

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        if self._stepped_in != loop.total_pieces:  # the step before was another piece's, and is complete
            self._update_if_due(loop)

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        self._stepped_in = loop.total_pieces

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        self._update_if_due(loop)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        self._update_if_due(loop)

    @hookimpl
    def before_evaluation(self, loop: Loop) -> None:
        if self.average and loop.stage == "fit":
            weights = list(self._weights.values())
            self._aside = [weight.detach().clone() for weight in weights]
            copy_(weights, list(self.average.values()))

    @hookimpl
    def after_evaluation(self, loop: Loop) -> None:
        if self._aside:
            copy_(list(self._weights.values()), self._aside)
            self._aside = []

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self.keep and self.average and loop.status in ("finished", "stopped"):
            self.copy_to(loop.module)
        self.reset()

    def copy_to(self, module: nn.Module) -> None:
        """Put the average into ``module``, which must have tensors of the same names and shapes."""
        weights = averaged_tensors(module, self.buffers)
        copy_([weights[name] for name in self.average], list(self.average.values()))

    def _update_if_due(self, loop: Loop) -> None:
        if self._stepped_in is not None:
            self._stepped_in = None
            if loop.global_step % self.every == 0:
                self._update()

    @torch.no_grad()
    def _update(self) -> None:
        homes = {name: self._home(weight) for name, weight in self._weights.items()}
        if not self.average:
            self.average = {name: weight.detach().to(*homes[name], copy=True) for name, weight in self._weights.items()}
        else:
            decay = 0.999 if self.decay is None else self.decay
            if self.warmup:
                decay = min(decay, (1 + self.updates) / (10 + self.updates))
            self.average = {name: self.average[name].to(*homes[name]) for name in self._weights}
            weights = [weight.detach().to(*homes[name]) for name, weight in self._weights.items()]
            torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)
        self.updates += 1

    def _home(self, weight: Tensor) -> tuple[torch.device, torch.dtype]:
        device = weight.device if self.device is None else torch.device(self.device)
        return device, torch.promote_types(weight.dtype, torch.float32)


def averaged_tensors(module: nn.Module, buffers: bool) -> dict[str, Tensor]:
    """Return the tensors to average, by name: the parameters and, with ``buffers``, floating-point buffers."""
    found: dict[str, Tensor] = dict(module.named_parameters())
    if buffers:
        found |= {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    return {name: tensor for name, tensor in found.items() if tensor.is_floating_point() or tensor.is_complex()}


@torch.no_grad()
def copy_(into: list[Tensor], values: list[Tensor]) -> None:
    """Write ``values`` into the tensors, whatever their device and precision."""
    for one, value in zip(into, values, strict=True):
        one.copy_(value)
