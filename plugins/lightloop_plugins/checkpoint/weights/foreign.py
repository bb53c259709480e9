"""Weights in the files of others: a ``state_dict`` by itself, or what Lightning and its like put around one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.tree import encode
from lightloop_plugins.checkpoint.saver import new_run
from lightloop_plugins.checkpoint.storage.folder import PREFIX, Content
from lightloop_plugins.checkpoint.storage.remote import folder_of
from lightloop_plugins.checkpoint.weights.files import is_plain, write_safetensors

WEIGHTS = ("state_dict", "model_state_dict", "model")
"""Under what a file may have its weights, beside other things."""
HYPERPARAMETERS = ("hyper_parameters", "hparams")


@dataclass
class Foreign:
    """What was read of somebody else's file."""

    weights: dict[str, Tensor]
    kind: str = "a state_dict"
    hparams: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    """Optimizer steps that the weights have seen, where the file says that."""
    epoch: int = 0
    left: list[str] = field(default_factory=list)
    """What else is in the file, and stays there."""

    @classmethod
    def of(cls, found: Any, what: str) -> Foreign:
        """Take what can be taken out of what a file held."""
        result = cls(plain_weights(found, what))
        if not isinstance(found, Mapping) or not any(isinstance(found.get(name), Mapping) for name in WEIGHTS):
            return result
        version = found.get("pytorch-lightning_version")
        result.kind = f"a checkpoint of Lightning {version}" if version else "a mapping with a state_dict"
        taken = {next(name for name in WEIGHTS if isinstance(found.get(name), Mapping)), "pytorch-lightning_version"}
        for name in HYPERPARAMETERS:
            its = found.get(name)
            its = its if isinstance(its, Mapping) else vars(its) if hasattr(its, "__dict__") else {}
            result.hparams |= {str(key): value for key, value in its.items() if is_plain(value)}
            result.left += [f"hyperparameter {key}" for key, value in its.items() if not is_plain(value)]
            taken |= {name, f"{name.removesuffix('s')}_name", "hparams_name", "hparams_type"}
        result.step, result.epoch = (_count(found.get(name)) for name in ("global_step", "epoch"))
        result.left += [str(name) for name in found if name not in {*taken, "global_step", "epoch"}]
        return result

    def about(self) -> dict[str, Any]:
        """All but the weights, as plain values."""
        plain = {"kind": self.kind, "step": self.step, "epoch": self.epoch, "left": self.left}
        return {**plain, "hparams": encode(self.hparams, {})}

    def stripped(self, prefix: str) -> Foreign:
        """The same without ``prefix`` before the names of weights; all must have it.

        Raises:
            CheckpointError: if one has not.
        """
        if odd := [name for name in self.weights if not name.startswith(prefix)]:
            raise CheckpointError(
                f"{odd[0]!r} does not begin with {prefix!r}; {len(odd)} of {len(self.weights)} do not"
            )
        weights = {name.removeprefix(prefix): tensor for name, tensor in self.weights.items()}
        return Foreign(weights, self.kind, self.hparams, self.step, self.epoch, self.left)

    def save(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> str:
        """Write a ``.safetensors`` file, or a checkpoint of weights alone into the folder ``target``; where it is."""
        if os.fspath(target).endswith(".safetensors"):
            write_safetensors(self.weights, target, self.hparams)
            return os.fspath(target)
        folder, run = folder_of(target), new_run()
        body: dict[str, Any] = {
            "run": run,
            "parent": None,
            "step": self.step,
            "batch": 0,
            "content": "weights",
            "exact": True,
            "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "counters": {"epoch": self.epoch, "batch_idx": 0, "global_step": self.step},
            "metrics": {},
            "plugins": [],
            "options": {},
            "environment": {"torch": torch.__version__},
            "imported": {"file": Path(source).name, "sha256": digest(source), "kind": self.kind},
        }
        folder.open(run)
        try:
            name = f"{PREFIX}{self.step:09d}-batch-{0:09d}"
            if name in folder.names():
                name += f"-{run}"
            folder.write(name, Content.of({"module": {"weights": self.weights}, "hparams": self.hparams}), body)
        finally:
            folder.close()
        return f"{folder.place.rstrip('/')}/{name}"


def plain_weights(found: Any, what: str) -> dict[str, Tensor]:
    """The tensors in what a file held: under ``state_dict``, ``model_state_dict`` or ``model``, or by themselves."""
    for name in WEIGHTS:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
            break
    if isinstance(found, nn.Module):
        found = found.state_dict()
    tensors = (
        {str(n): v.detach() for n, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    )
    if not tensors:
        raise CheckpointError(f"{what} has no weights: it is {type(found).__name__}")
    for name, tensor in tensors.items():  # a few bytes can claim terabytes, which a copy would ask for
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"{what}: {name} claims shape {list(tensor.shape)} and has not that many values")
    return tensors


def digest(source: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file."""
    with open(source, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 10**9 else 0
