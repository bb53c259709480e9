"""Update all parameters of an optimizer in one call."""

from __future__ import annotations

import logging
from collections.abc import Generator

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.optimizer import _device_dtype_check_for_fused

from lightloop import Loop, Plugin, Setup, hookimpl, option
from lightloop.toolkit import parameters_of

CAN = (Adagrad, Adam, AdamW, SGD)
log = logging.getLogger("lightloop")


class Fused(Plugin):
    """Use the fused kernels (``fused=True``) of torch's optimizers, unless the user has chosen an implementation.

    These are Adagrad, Adam, AdamW and SGD, as far as torch has a kernel for the device. One that was given ``fused``,
    ``foreach`` or ``differentiable`` stays as it is, and so does every other. A fused step may round differently in the last
    bit, which is why nobody gets it unasked; it takes no sparse gradients.
    """

    name = "fused"

    on: bool = option(
        False,
        "Use fused kernels in torch's optimizers, unless you have chosen an implementation.",
        flag="fused_optimizer",
        switch=True,
    )

    @hookimpl(wrapper=True)
    def configure_optimizers(self, loop: Loop) -> Generator[None, Setup, Setup]:
        setup = yield
        fused = [type(optimizer).__name__ for optimizer in setup.optimizers if fuse(optimizer)]
        if loop.world.is_main:
            log.info("fused_optimizer=True: fused are %s", ", ".join(fused) or "none of the optimizers")
        return setup

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        for optimizer in loop.optimizers:  # one that was restored may have been saved by a run that was not fused
            if fuse(optimizer):
                for parameter, state in optimizer.state.items():
                    if "step" in state:
                        state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=parameter.device)
        loop.opt_out(self, "before_epoch")


def fuse(optimizer: Optimizer) -> bool:
    """Set ``fused`` in every group of ``optimizer``, if it can be and is free to be; returns whether that was done."""
    groups = optimizer.param_groups
    if type(optimizer) not in CAN or any(group["differentiable"] for group in groups):
        return False
    if any(group[name] is not None for group in groups for name in ("fused", "foreach")) or not _has_kernel(optimizer):
        return False
    for group in groups:
        group["fused"] = True
    return True


def _has_kernel(optimizer: Optimizer) -> bool:
    """Whether torch has one for all the parameters; it looks, with the same function, at the first step."""
    try:
        for parameter in parameters_of(optimizer):
            _device_dtype_check_for_fused(parameter, cuda_unsupported=isinstance(optimizer, Adagrad))
    except RuntimeError:
        return False
    return True
