"""What each rank has of its own, beside what is the same on all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightloop import Loop
from lightloop_plugins._sharding import SHARDING
from lightloop_plugins.checkpoint.format.safetensors import raw
from lightloop_plugins.checkpoint.format.strict_json import to_json
from lightloop_plugins.checkpoint.format.tree import Encoded, encode
from lightloop_plugins.checkpoint.state.loader import position
from lightloop_plugins.checkpoint.state.random_state import take_global
from lightloop_plugins.checkpoint.state.reading import Reading
from lightloop_plugins.checkpoint.state.windows import take_metrics, take_window

OWN_PARTS = ("buffers", "extra", "generators")
"""Parts of the module's state that a rank may have otherwise than rank 0."""


def take_rank(loop: Loop, reading: Reading | None, every: Mapping[str, Tensor]) -> dict[str, Any]:
    """What each rank has of its own: windows and their gradients, metrics, the loader's place, random numbers.

    A gradient that was stepped with, and to which nothing was added since, is left out.

    Args:
        loop: the run.
        reading: how the epoch is read.
        every: all parameters by name.
    """
    left = [(ref(), version) for window in loop.windows for ref, version in window.spent]
    spent = {id(gradient) for gradient, version in left if gradient is not None and gradient._version == version}
    return {
        "windows": [take_window(window) for window in loop.windows],
        "gradients": {name: p.grad for name, p in every.items() if p.grad is not None and id(p.grad) not in spent},
        "waiting": sharding.waiting() if (sharding := loop.stash.get(SHARDING)) else {},
        "metrics": take_metrics(loop),
        "loader": position(loop, reading),
        "random": take_global(),
    }


def gather(loop: Loop, own: dict[str, Any]) -> list[Any]:
    """What each rank has of its own; where each writes it itself, the tensors of others stay with them."""
    if loop.world.size == 1:
        return [own]
    if SHARDING not in loop.stash:
        return loop.world.gather(own)
    encoded = encode(own, {}, f"ranks.{loop.world.rank}")
    ranks: list[Any] = [Encoded(each) for each in loop.world.gather(encoded)]
    ranks[loop.world.rank] = own
    return ranks


def differing(loop: Loop, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What in ``parts`` is not on this rank as it is on rank 0."""
    digests = {(part, name): _digest(value) for part, values in parts.items() for name, value in values.items()}
    main = loop.world.broadcast(digests)
    return {
        part: {name: value for name, value in values.items() if main.get((part, name)) != digests[part, name]}
        for part, values in parts.items()
    }


def _digest(value: Any) -> str:
    """A hash of all in it but split tensors, which are one tensor of all ranks."""
    tensors: dict[str, Tensor] = {}
    digest = hashlib.sha256(to_json(encode(value, tensors)))
    for tensor in tensors.values():
        if tensor.numel() and not hasattr(tensor, "to_local"):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(raw(tensor))
    return digest.hexdigest()
