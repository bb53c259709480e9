"""Detect what a hook call changed, without waiting for the device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lightloop import Loop


class Marks(NamedTuple):
    """By what a change is seen, under the names by which it is told."""

    learning_rate: tuple[object, ...]
    requests: tuple[object, ...]
    batch: int
    loss: int
    gradients: tuple[object, ...]
    parameters: tuple[int, ...]


def marks(loop: Loop) -> Marks:
    """The marks of a run as it is now."""
    groups = [group for optimizer in loop.optimizers for group in optimizer.param_groups]
    parameters = list(loop.module.parameters())
    rates = [group.get("lr") for group in groups]
    return Marks(
        tuple(_mark(rate) if isinstance(rate, Tensor) else rate for rate in rates),
        (
            *loop.stop_reasons,
            loop.interrupt_reason,
            loop.end_epoch_reason,
            loop.skip_step_reason,
            loop.skip_batch_reason,
        ),
        id(loop.batch),
        id(loop.loss),
        tuple(_mark(parameter.grad) for parameter in parameters),
        tuple(parameter._version for parameter in parameters),
    )


def changes(before: Marks, after: Marks) -> tuple[str, ...]:
    """The names of what differs."""
    return tuple(
        name.replace("_", " ") for name, one, other in zip(Marks._fields, before, after, strict=True) if one != other
    )


def _mark(tensor: Tensor | None) -> object:
    return None if tensor is None else (id(tensor), tensor._version)
