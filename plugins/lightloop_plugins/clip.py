"""Clip the gradients before each optimizer step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import clip_norm_, parameters_of, refuse_closures, searches_line


class Clip(Plugin):
    """Clip the gradients of the stepping optimizer; those of other optimizers are unchanged.

    * ``norm``: all are scaled down together until their total 2-norm is at most ``limit`` (Pascanu et al. 2013). The
      norm is the one that ``loop.grad_norm(2.0)`` tells everybody; it is logged as ``grad_norm``, and what is left of
      it as ``grad_norm_clipped``.
    * ``value``: each element is cut to ``[-limit, limit]``.
    * ``adaptive``: each unit's gradient is scaled down until its 2-norm is at most ``limit`` times the 2-norm of the
      unit's weights, which counts as ``eps`` where it is less (Brock et al. 2021, arXiv:2102.06171). A unit is one
      index of a parameter's first axis: an output of a Linear or a convolution, a row of an embedding; a parameter of
      one axis or none is one unit. (In a transposed convolution the first axis is the inputs'.)

    Norm and value give what ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_`` give, bit for bit, save that a
    gradient whose norm is not finite is left as it is: scaling by such a norm would turn the finite gradients beside it
    into 0 or NaN. The ``nonfinite`` plugin says what becomes of them. Nothing is read back from the device.
    """

    name = "clip"
    after = ("grad_norm", "nonfinite")
    disturbs = ("gradients", "parameters")

    limit: float | None = option(
        None,
        "Maximum total norm, absolute value, or ratio of norms of the gradients; None and 0 are off.",
        flag="gradient_clip_val",
        switch=True,
        aliases=("gradient_clip",),
    )
    algorithm: Literal["norm", "value", "adaptive"] = option(
        "norm",
        "What to clip: the total norm, each value, or each unit's norm relative to that of its weights.",
        flag="gradient_clip_algorithm",
        enables=False,
    )
    eps: float = option(
        1e-3,
        "Adaptive clipping: lower bound for the norm of a unit's weights.",
        flag="gradient_clip_eps",
        enables=False,
    )

    def validate(self) -> None:
        if self.limit is None or not self.limit > 0:
            raise self.invalid("limit", "a number above 0")
        if not self.eps > 0:
            raise self.invalid("eps", "a number above 0")

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        why = "which must have gradients as they are: line_search_fn='strong_wolfe' is what keeps its steps small"
        refuse_closures(loop, "gradient_clip_val", why, searches_line)

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        assert self.limit is not None
        if self.algorithm == "norm":
            norm = loop.grad_norm(2.0)
            self._log(loop, norm, clip_norm_(loop.gradients, self.limit, norm))
            return
        parameters = [parameter for parameter in parameters_of(loop.optimizer) if parameter.grad is not None]
        if self.algorithm == "value":
            if dense := [parameter for parameter in parameters if not _sparse(parameter)]:
                torch.nn.utils.clip_grad_value_(dense, self.limit)
            for parameter in filter(_sparse, parameters):
                clip_sparse_values(parameter, self.limit)
        else:
            for parameter in parameters:
                clip_units(parameter, self.limit, self.eps)

    def _log(self, loop: Loop, norm: Tensor, clipped: Tensor) -> None:
        suffix = f"/optimizer_{loop.optimizer_idx}" if len(loop.windows) > 1 else ""
        loop.log(f"grad_norm{suffix}", norm, reduce="last", copy=False)
        loop.log(f"grad_norm_clipped{suffix}", clipped, reduce="last", copy=False)


@torch.no_grad()
def clip_sparse_values(parameter: Tensor, limit: float) -> None:
    """Cut each element of a sparse gradient to ``[-limit, limit]``, which torch does for dense ones alone."""
    assert parameter.grad is not None
    whole = parameter.grad.coalesce()  # an index that occurs twice stands for the sum of its values
    whole.values().clamp_(-limit, limit)
    parameter.grad.copy_(whole)


@torch.no_grad()
def clip_units(parameter: Tensor, limit: float, eps: float) -> None:
    """Scale each unit's gradient down to ``limit`` times the norm of its weights."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.is_sparse:
        whole = gradient.coalesce()
        values = whole.values()
        values.mul_(_factor(values, parameter[whole.indices()[0]], limit, eps))
        gradient.copy_(whole)
    else:
        gradient.mul_(_factor(gradient, parameter, limit, eps))


def _factor(gradient: Tensor, weight: Tensor, limit: float, eps: float) -> Tensor:
    axes = tuple(range(1, weight.ndim)) or None
    most = torch.linalg.vector_norm(weight, dim=axes, keepdim=True).clamp(min=eps) * limit
    norm = torch.linalg.vector_norm(gradient, dim=axes, keepdim=True)
    return torch.where(norm.isfinite() & (norm > most), most / norm, 1.0)


def _sparse(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse
