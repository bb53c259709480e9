"""Cut a batch, set gradients aside, and go back to where an attempt began."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lightloop import Loop
from lightloop.toolkit import keep_random, take_samples
from lightloop_plugins._trial import free_memory

Gradients = list[tuple[Tensor, Tensor]]
"""Parameters with gradients that were taken off them."""
REMEDY = "Define cut_batch(self, batch, pieces) on the module; it returns the batch in so many pieces"


def remember(loop: Loop) -> Callable[[], None]:
    """What puts random numbers and logged values back to where they are now, and frees what failed attempts held."""
    random, metrics = keep_random(), loop.metrics
    kept = [{name: one.copy() for name, one in each.items()} for each in (metrics.step, metrics.epoch)]
    latest, updates = dict(metrics.latest), dict(metrics.updates)

    def rewind() -> None:
        free_memory()
        random()
        for each, before in zip((metrics.step, metrics.epoch), kept, strict=True):
            each.clear()
            each.update({name: one.copy() for name, one in before.items()})
        metrics.latest, metrics.updates = dict(latest), dict(updates)

    return rewind


def cut(batch: Any, size: int, pieces: int, collated: bool = False) -> Iterator[tuple[Any, int]]:
    """The batch of ``size`` samples in ``pieces``, each with its size; these differ by one at most.

    There are fewer where the batch has fewer samples.

    Raises:
        ValueError: if it cannot be said of some part of the batch to which samples it belongs.
    """
    pieces = min(pieces, size)
    for piece in range(pieces):
        first, end = size * piece // pieces, size * (piece + 1) // pieces
        try:
            part = take_samples(batch, size, first, end, collated=collated)
        except ValueError as error:
            raise ValueError(f"split_on_oom cannot cut a batch: {error}. {REMEDY}") from None
        yield part, end - first


def take_gradients(loop: Loop) -> Gradients:
    """Take the gradients off the module's parameters."""
    taken: Gradients = [
        (parameter, parameter.grad) for parameter in loop.module.parameters() if parameter.grad is not None
    ]
    for parameter, _ in taken:
        parameter.grad = None
    return taken


@torch.no_grad()
def add_gradients(gradients: Gradients) -> None:
    """Add them to what the parameters have, in the arithmetic of a backward."""
    for parameter, gradient in gradients:
        parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
