"""What is done to the gradients of a step, as fast as torch can do it.

Everything here gives what torch's own functions give, bit for bit; what is spared is what those look up each time.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

Weight = int | float | Fraction | Tensor


def share_of(loss: Tensor, weight: Weight, planned: int, cache: dict[Any, Tensor]) -> Tensor | None:
    """The gradient with which backward begins: ``weight / planned``; None where that is one.

    ``cache`` keeps the seeds that are plain numbers, so that none is copied to a device twice.
    """
    if type(weight) is not int and isinstance(weight, Tensor):
        return (weight.detach() / planned).to(loss).reshape(loss.shape)
    if weight == planned:
        return None
    key = (weight, planned, loss.dtype, loss.device, loss.shape)
    if key not in cache:
        factor = float(weight) / planned
        cache[key] = torch.full_like(loss, factor, requires_grad=False)
    return cache[key]


def differentiate(loss: Tensor, seed: Tensor | None, cache: dict[Any, Tensor]) -> None:
    """Do ``loss.backward(seed)``.

    A loss that is a plain number needs none of the checks that torch makes in Python, which cost as much as the backward
    of a small layer: it goes straight to the function in which ``Tensor.backward`` ends. ``cache`` keeps the ones with
    which torch begins where there is no seed.
    """
    if type(loss) is not Tensor or loss.ndim or not loss.is_floating_point():
        loss.backward(seed)  # type: ignore[no-untyped-call]
        return
    if seed is None:
        key = (loss.dtype, loss.device)
        seed = cache[key] if key in cache else cache.setdefault(key, torch.ones_like(loss, requires_grad=False))
    elif type(seed) is not Tensor or seed.ndim or seed.dtype is not loss.dtype:
        loss.backward(seed)  # type: ignore[no-untyped-call]
        return
    _engine_run_backward((loss,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def total_norm(gradients: list[Tensor], norm_type: float) -> Tensor:
    """The ``norm_type``-norm of all elements together, a scalar on the device of the first; each index of a sparse one counts once."""
    if _alike(gradients):
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, norm_type)), norm_type)
        return norm
    elements = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    return torch.nn.utils.get_total_norm([each for each in elements if each.numel()], norm_type)


def clip_norm_(gradients: list[Tensor], limit: float, norm: Tensor) -> Tensor:
    """Scale ``gradients``, whose norm is ``norm``, down to ``limit`` in place, and return the norm that they then have.

    What :func:`torch.nn.utils.clip_grads_with_norm_` does, save that nothing is scaled by a norm that is not finite.
    """
    eps = 1e-6
    factor = (norm + eps).nan_to_num_(eps, eps, eps).reciprocal_().mul_(limit).clamp_(max=1.0)
    if _alike(gradients):
        torch._foreach_mul_(gradients, factor)
    else:
        with torch.no_grad():
            for gradient in gradients:
                gradient.mul_(factor.to(gradient.device))
    return norm * factor


def scale_(gradients: list[Tensor], factor: float | Tensor) -> None:
    """Multiply ``gradients`` in place by one number, without reading it."""
    if isinstance(factor, float) and factor == 1.0:
        return
    with torch.no_grad():
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device, gradient.dtype) if isinstance(factor, Tensor) else factor)


def _alike(tensors: list[Tensor]) -> bool:
    """Whether one call can do them all: plain and dense, of one type on one device, none empty, none in a graph."""
    if not tensors:
        return False
    dtype, device = tensors[0].dtype, tensors[0].device
    for each in tensors:
        if type(each) is not Tensor or each.dtype is not dtype or each.device != device:
            return False
        if each.layout is not torch.strided or each.requires_grad or not each.numel():
            return False
    return True
