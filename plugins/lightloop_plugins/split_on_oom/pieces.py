"""Cut a batch, set gradients aside, and go back to where an attempt began."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightloop import Loop, batch_size, defined, keep_random, map_leaves
from lightloop_plugins._trial import free_memory

Gradients = list[tuple[Tensor, Tensor]]
"""Parameters with gradients that were taken off them."""


def remember(loop: Loop) -> Callable[[], None]:
    """What puts random numbers and logged values back to where they are now, and frees what failed attempts held."""
    random, metrics = keep_random(), loop.metrics
    kept = [{name: list(one.pairs) for name, one in each.items()} for each in (metrics.step, metrics.epoch)]
    latest, updates = dict(metrics.latest), dict(metrics.updates)

    def rewind() -> None:
        free_memory()
        random()
        for each, pairs in zip((metrics.step, metrics.epoch), kept, strict=True):
            for name in [name for name in each if name not in pairs]:
                del each[name]
            for name, one in each.items():
                one.pairs = list(pairs[name])
        metrics.latest, metrics.updates = dict(latest), dict(updates)

    return rewind


def cut(loop: Loop, batch: Any, pieces: int) -> Iterator[Any]:
    """The batch in ``pieces`` whose sizes differ by one at most; fewer where it has fewer samples."""
    own = defined(loop.module, "cut_batch")
    if own is not None:
        yield from own(batch, pieces)
        return
    size = batch_size(batch)
    pieces = min(pieces, size)
    for piece in range(pieces):
        yield _part(batch, size, size * piece // pieces, size * (piece + 1) // pieces)


def _part(batch: Any, size: int, first: int, end: int) -> Any:
    def listed(value: Any, path: str) -> bool:
        """Whether it has one entry for each sample, and no tensor."""
        return isinstance(value, list) and len(value) == size and not any(isinstance(x, (Tensor, list)) for x in value)

    def part(value: Any, path: str) -> Any:
        if isinstance(value, PackedSequence):
            raise TypeError("split_on_oom cannot cut a PackedSequence: define cut_batch(batch, pieces) on the module")
        whole = isinstance(value, Tensor) and value.ndim and value.shape[0] == size
        return value[first:end] if whole or listed(value, path) else value

    return map_leaves(part, batch, is_leaf=listed)


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
