"""Checkpoints that leave tensors of the module out: which, and whether those that are there now are the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightloop import Loop
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.safetensors import raw
from lightloop_plugins.checkpoint.state.modules import every_tensor, first_names

LeftOut = Mapping[str, str]
"""The tensors that a checkpoint lacks, by name: their fingerprints."""


class Base:
    """The tensors that one run leaves out, remembered as they were when they were first seen."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Tensor, int | None, str]] = {}

    def left_out(self, loop: Loop) -> LeftOut:
        """What the plugins leave out of a checkpoint that is taken now; every rank asks.

        Raises:
            CheckpointError: if one of it is trained, or is no longer what it was when the run began.
        """
        tensors = every_tensor(loop.module)
        chosen: Iterable[str] | None = loop.hook.saved_tensors(loop=loop, names=list(tensors))  # type: ignore[attr-defined]
        if chosen is None:
            return {}
        saved = set(chosen)
        if odd := sorted(saved - set(tensors)):
            raise CheckpointError(
                f"saved_tensors answers with {', '.join(odd[:5])}, which is no parameter or buffer of the module: answer with "
                "some of the names that it is given"
            )
        left = [name for name in tensors if name not in saved]
        trained = {id(p) for optimizer in loop.optimizers for group in optimizer.param_groups for p in group["params"]}
        for name in left:
            if tensors[name].requires_grad and id(tensors[name]) in trained:
                raise CheckpointError(
                    f"saved_tensors leaves out {name}, which is being trained: it would be lost. Freeze it with "
                    "requires_grad_(False), or save it"
                )
        return {name: self._fingerprint(name, tensors[name]) for name in left}

    def _fingerprint(self, name: str, tensor: Tensor) -> str:
        """Of a tensor that has stayed the same.

        A parameter is read again only where torch has counted a change. Buffers always are: kernels such as batch
        normalization write into them uncounted.
        """
        version = _version(tensor) if isinstance(tensor, nn.Parameter) else None
        known, at, print_then = self._seen.get(name, (None, None, ""))
        if known is tensor and version is not None and at == version:
            return print_then
        now = fingerprint(tensor)
        if known is not None and now != print_then:
            raise CheckpointError(
                f"{name} is left out by saved_tensors and has changed since this run began: a resumed run would not have it. "
                "Save it, or keep it from being changed (a BatchNorm in training mode changes its buffers)"
            )
        self._seen[name] = tensor, version, now
        return now


def fingerprint(tensor: Tensor) -> str:
    """A hash of type, shape and bytes; of a split tensor every rank must ask, and has that of the whole."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    whole = whole.detach()
    digest = hashlib.sha256(f"{whole.dtype} {list(whole.shape)}".encode())
    if whole.numel():
        digest.update(raw(whole))
    return digest.hexdigest()


def without(module: Mapping[str, Any], left_out: LeftOut) -> dict[str, Any]:
    """The state of a module as :func:`take_module` gives it, without the tensors in ``left_out``."""
    kept = {
        part: {name: tensor for name, tensor in module[part].items() if name not in left_out}
        for part in ("parameters", "buffers")
    }
    return {**module, **kept, "left_out": dict(left_out)} if left_out else dict(module)


def weights_without(module: nn.Module, left_out: LeftOut) -> dict[str, Any]:
    """The weights of ``module``, and what is not among them; a tensor that is left out is so under each of its names."""
    weights, names = module.state_dict(), first_names(module)
    kept = {name: value for name, value in weights.items() if names.get(name, name) not in left_out}
    return {"weights": kept, "left_out": dict(left_out)} if left_out else {"weights": kept}


def described(left_out: LeftOut) -> dict[str, Any]:
    """What the manifest says of it: the names, and one hash for all of them."""
    digest = hashlib.sha256("\n".join(f"{name} {left_out[name]}" for name in sorted(left_out)).encode())
    return {"partial": {"left_out": sorted(left_out), "base": digest.hexdigest()}} if left_out else {}


def odd_ones(left_out: LeftOut, tensors: Mapping[str, Tensor]) -> list[str]:
    """Those of ``left_out`` that are not among ``tensors``, or are other ones there."""
    return [name for name, then in left_out.items() if name not in tensors or fingerprint(tensors[name]) != then]


def check_base(module: nn.Module, left_out: LeftOut, what: str) -> None:
    """Refuse to resume from a partial checkpoint over other values than those that it was trained over."""
    if odd := odd_ones(left_out, every_tensor(module)):
        raise CheckpointError(
            f"{what} is partial: it lacks {len(left_out)} tensors of the module, and the run was trained over other values than "
            f"{len(odd)} of them have now: {listed(odd)}. Build the module as it was then, from the same pretrained weights"
        )


def listed(names: Iterable[str], most: int = 3) -> str:
    """``names`` for people, the first few."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _version(tensor: Tensor) -> int | None:
    """A number that rises when torch writes into the tensor, where there is one."""
    with torch.no_grad():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return None if local.is_inference() else local._version


__all__ = [
    "Base",
    "LeftOut",
    "check_base",
    "described",
    "fingerprint",
    "listed",
    "odd_ones",
    "weights_without",
    "without",
]
