"""Log the norm of the gradients at each optimizer step."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import elements, parameters_of


class GradNorm(Plugin):
    """Log the p-norm of the stepping optimizer's gradients, in total and for each parameter.

    They are measured when the gradients are whole and unscaled and before they are clipped, and logged once for each
    step that was applied: by default as ``grad_2.0_norm_total`` and ``grad_2.0_norm_<parameter>``. What clipping leaves
    of them is ``…_clipped``. With several optimizers, each one's keys end in ``/optimizer_<index>``. All are over
    all ranks, and the total is the norm that clipping uses. Nothing is read back from the device.
    """

    name = "grad_norm"
    before = ("clip", "nonfinite", "nonfinite_async", "terminate_on_nan")
    transient = ("p", "_total", "_names", "_before")

    norm_type: float | str = option(
        -1, "The p of the norm, any number above 0 or 'inf'; -1 is off.", flag="track_grad_norm"
    )
    per_parameter: bool = option(True, "Log each parameter's norm in addition to the total.", enables=False)
    clipped: bool = option(False, "Measure again after clipping, in a second pass.", enables=False)
    metric: str = option(
        "grad_{p}_norm_{name}",
        "Format of the metrics' names; for the total, the parameter's name is 'total'.",
        flag="grad_norm_key",
        enables=False,
    )

    def validate(self) -> None:
        if isinstance(self.norm_type, str) and self.norm_type != "inf":
            raise self.invalid("norm_type", "a number above 0, or 'inf'; -1 is off")
        self.p = float(self.norm_type)
        if not self.p > 0:
            raise self.invalid("norm_type", "a number above 0, or 'inf'; -1 is off")
        try:
            keys = {self.metric.format(p=self.p, name=name) for name in "ab"}
        except (KeyError, IndexError, ValueError):
            keys = set()
        if len(keys) < 2:
            raise self.invalid("metric", "a text with {name} in it, and perhaps {p}")
        self._total = self._called("total")
        self._names: dict[int, str] = {}
        self._before: dict[str, Tensor] = {}

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._names = {id(parameter): name for name, parameter in loop.module.named_parameters()}

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        self._before = self._measure(loop, loop.grad_norm(self.p))

    @hookimpl(wrapper=True)
    def step(self, loop: Loop) -> Generator[None, bool | None, bool | None]:
        norms, self._before = self._before, {}
        if self.clipped:
            total = loop.hook.grad_norm(loop=loop, norm_type=self.p)
            assert total is not None
            norms |= {f"{name}_clipped": norm for name, norm in self._measure(loop, total).items()}
        applied = yield
        if applied:
            suffix = f"/optimizer_{loop.optimizer_idx}" if len(loop.windows) > 1 else ""
            for name, norm in norms.items():
                loop.log(name + suffix, norm, copy=False)
        return applied

    def _measure(self, loop: Loop, total: Tensor) -> dict[str, Tensor]:
        norms = {self._total: total}
        if self.per_parameter:
            named = {
                self._called(self._names.get(id(parameter), f"unnamed_{index}")): elements(parameter.grad)
                for index, parameter in enumerate(parameters_of(loop.optimizer))
                if parameter.grad is not None
            }
            named = {name: gradient for name, gradient in named.items() if gradient.numel()}
            measured = torch._foreach_norm(list(named.values()), self.p) if named else ()
            norms |= zip(named, map(_over_ranks, measured), strict=True)
        return norms

    def _called(self, name: str) -> str:
        return self.metric.format(p="inf" if math.isinf(self.p) else self.p, name=name)


def _over_ranks(norm: Any) -> Tensor:
    """A plain tensor; the norm of a gradient that is sharded is brought together."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole
