"""Weights without a run: load them into a module, build the module that they are of, hand them to others, take theirs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.find import Found, load_newest, load_one
from lightloop_plugins.checkpoint.manifest import is_name
from lightloop_plugins.checkpoint.remote import folder_of
from lightloop_plugins.checkpoint.storage import EXCEPTION, PREFIX, Shards
from lightloop_plugins.checkpoint.tensors import from_bytes, to_bytes
from lightloop_plugins.checkpoint.tree import encode

M = TypeVar("M", bound=nn.Module)
FOLDER = "checkpoints"
"""What the folder of checkpoints is called in a run's directory."""

_TRUSTING = """
import sys, torch
found = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
from lightloop_plugins.checkpoint.weights import plain_weights, write_safetensors
write_safetensors(plain_weights(found, sys.argv[1]), sys.argv[2])
"""


def load_path(place: str | os.PathLike[str], shards: Shards = "whole") -> Found:
    """The checkpoint at ``place``, or the newest one in it where it is a folder of them or of a run.

    Raises:
        CheckpointError: if there is none.
    """
    text = os.fspath(place).rstrip("/")
    parent, _, name = text.rpartition("/")
    if name.startswith((PREFIX, EXCEPTION)) and is_name(name):
        return load_one(folder_of(parent or "."), name, shards=shards)
    for folder in (text, f"{text}/{FOLDER}"):
        if (found := load_newest(folder_of(folder), shards=shards)) is not None:
            return found
    raise CheckpointError(f"there is no checkpoint at {text}: give the path of one, or of a folder of them")


def weights_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The weights in a checkpoint's state, by the names of ``module.state_dict()``."""
    module = state["module"]
    if "weights" in module:
        return dict(module["weights"])
    transient = set(module["transient"])
    weights = {**module["parameters"], **{n: b for n, b in module["buffers"].items() if n not in transient}}
    weights |= {name: weights[first] for name, first in module["tied"].items()}
    return weights | {f"{name}._extra_state".lstrip("."): extra for name, extra in module["extra"].items()}


def load_weights(module: nn.Module, place: str | os.PathLike[str], strict: bool = True) -> None:
    """Put the weights of a checkpoint, or of a ``.safetensors`` file, into ``module``.

    Args:
        module: its tensors are filled, where they are.
        place: a checkpoint, a folder of them (the newest is taken), or a ``.safetensors`` file.
        strict: whether names that only one side has are an error.

    Raises:
        CheckpointError: if the file is damaged, or is of another module; the module is then as it was.
    """
    if os.fspath(place).endswith(".safetensors"):
        weights: dict[str, Any] = dict(from_bytes(bytearray(Path(place).read_bytes()), str(place)))
    else:
        weights = weights_of(load_path(place).state)
    _fill(module, weights, str(place), strict)


def load_module(cls: type[M], place: str | os.PathLike[str], strict: bool = True, **arguments: Any) -> M:
    """A new ``cls`` with the weights of a checkpoint, made with the hyperparameters that were saved with them.

    Args:
        cls: the class; a checkpoint never says which.
        place: see :func:`load_weights`.
        strict: see :func:`load_weights`.
        arguments: of the constructor, in place of what was saved.

    Raises:
        CheckpointError: if an argument is missing, or the weights are of another module.
    """
    found = load_path(place)
    saved = found.state.get("hparams", {})
    wanted = inspect.signature(cls).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
    given = {name: value for name, value in saved.items() if anything or name in wanted} | arguments
    try:
        module = cls(**given)
    except TypeError as error:
        raise CheckpointError(
            f"{cls.__name__} cannot be built with the saved hyperparameters ({', '.join(saved) or 'none'}): {error}. "
            "Pass what is missing to load_from_checkpoint, or call save_hyperparameters() in its constructor"
        ) from error
    _fill(module, weights_of(found.state), str(place), strict)
    return module


def export_weights(place: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the weights of a checkpoint to a ``.safetensors`` file, or to a ``.pt`` file that holds a ``state_dict``."""
    weights = weights_of(load_path(place).state)
    if os.fspath(target).endswith(".safetensors"):
        write_safetensors({name: value for name, value in weights.items() if isinstance(value, Tensor)}, target)
    else:
        torch.save({name: v.clone() if isinstance(v, Tensor) else v for name, v in weights.items()}, target)


def import_weights(source: str | os.PathLike[str], trust: bool = False) -> dict[str, Tensor]:
    """The weights in a ``.pt`` or ``.ckpt`` file of somebody else's, be it a ``state_dict`` or a mapping with one.

    Args:
        source: the file.
        trust: run whatever code the file brings, in a process of its own with all that you may do. Without it nothing but
            tensors and plain values is read, which is enough for nearly all files.

    Raises:
        CheckpointError: if it cannot be read so, or has no weights.
    """
    if not trust:
        try:
            found = torch.load(source, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{source} has more than tensors and plain values in it ({type(error).__name__}). If you trust whoever made it "
                "with your account and your files, import it with trust=True"
            ) from error
        return plain_weights(found, str(source))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "weights.safetensors"
        done = subprocess.run(
            [sys.executable, "-c", _TRUSTING, os.fspath(source), str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CheckpointError(
                f"{source} cannot be read: {done.stderr.strip().splitlines()[-1:] or done.returncode}"
            )
        return {n: t.clone() for n, t in from_bytes(bytearray(target.read_bytes()), str(source)).items()}


def plain_weights(found: Any, what: str) -> dict[str, Tensor]:
    """The tensors in what a file held: under ``state_dict``, ``model_state_dict`` or ``model``, or by themselves."""
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
            break
    if isinstance(found, nn.Module):
        found = found.state_dict()
    tensors = {str(n): v for n, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    if not tensors:
        raise CheckpointError(f"{what} has no weights: it is {type(found).__name__}")
    for name, tensor in tensors.items():  # a few bytes can claim terabytes, which a copy would ask for
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"{what}: {name} claims shape {list(tensor.shape)} and has not that many values")
    return tensors


def write_safetensors(weights: Mapping[str, Tensor], target: str | os.PathLike[str]) -> None:
    """Write a ``.safetensors`` file that other programs read."""
    with open(target, "wb") as stream:
        for part in to_bytes(weights, {"format": "pt"}):
            stream.write(part)


def take_hyperparameters(module: nn.Module) -> dict[str, Any]:
    """What ``module.hparams`` has that can be stored; what cannot is left out with a warning, once."""
    found = getattr(module, "hparams", None)
    kept = {}
    for name, value in found.items() if isinstance(found, Mapping) else ():
        try:
            encode(value, {})
        except CheckpointError as error:
            warnings.warn(f"hyperparameter {name!r} is not in the checkpoint: {error}", stacklevel=2)
        else:
            kept[str(name)] = value
    return kept


def _fill(module: nn.Module, weights: dict[str, Any], what: str, strict: bool) -> None:
    own = module.state_dict()
    missing, odd = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    if strict and (missing or odd):
        raise CheckpointError(
            f"{what} is of another module than {type(module).__name__}: it lacks {', '.join(missing[:5]) or 'nothing'} and "
            f"has {', '.join(odd[:5]) or 'nothing'} beside. strict=False loads what fits by name"
        )
    for name, value in weights.items():
        if name in own and isinstance(value, Tensor) and value.shape != own[name].shape:
            raise CheckpointError(
                f"{what}: {name} has shape {list(value.shape)} there, {list(own[name].shape)} in {type(module).__name__}"
            )
    module.load_state_dict({name: value for name, value in weights.items() if name in own}, strict=False)
