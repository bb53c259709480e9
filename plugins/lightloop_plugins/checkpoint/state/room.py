"""Let a module make room for weights of another form than it has: ``on_load_checkpoint`` and torch's own ways come first.

Lazy layers, observers of quantization, pruning and growing banks of samples have tensors whose names and shapes change
while they train. A new module has them as they were at first, and knows by itself how to take the later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy


def make_room(module: nn.Module, weights: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> str:
    """Hand ``weights`` to the module, whichever of them it takes; what it said against the others.

    Args:
        module: its ``on_load_checkpoint`` is called first, if it has one, as Lightning does.
        weights: by the names of its ``state_dict``.
        checkpoint: what ``on_load_checkpoint`` finds beside them, which are under "state_dict".
    """
    if callable(method := getattr(type(module), "on_load_checkpoint", None)):
        method(module, {**checkpoint, "state_dict": dict(weights)})
    try:
        odd = module.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        return str(error)
    unknown, missing = ", ".join(odd.unexpected_keys[:5]), ", ".join(odd.missing_keys[:5])
    return " and ".join([f"it does not know {unknown}"] * bool(unknown) + [f"it misses {missing}"] * bool(missing))


@contextmanager
def unchanged_on_error(module: nn.Module) -> Iterator[None]:
    """Have the module's parameters and buffers as they were if an error comes."""
    parts = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    tensors = [each for _, own, buffers in parts for each in (*own.values(), *buffers.values()) if each is not None]
    values = [(each, each.detach().clone()) for each in tensors if not is_lazy(each)]
    try:
        yield
    except BaseException:
        for part, parameters, buffers in parts:
            part._parameters.clear()
            part._parameters.update(parameters)
            part._buffers.clear()
            part._buffers.update(buffers)
        with torch.no_grad():
            for tensor, value in values:
                tensor.data = value
        raise
