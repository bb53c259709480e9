"""Weights without a run: load them into a module, build the module that they are of, hand them to others, take theirs."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lightloop.toolkit import Hyperparameters, warn
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.limits import allowance
from lightloop_plugins.checkpoint.format.manifest import is_name
from lightloop_plugins.checkpoint.format.tree import encode
from lightloop_plugins.checkpoint.state.partial import LeftOut
from lightloop_plugins.checkpoint.storage.find import Found, load_newest, load_one
from lightloop_plugins.checkpoint.storage.folder import EXCEPTION, PREFIX, Folder, Shards
from lightloop_plugins.checkpoint.storage.remote import folder_in, folder_of
from lightloop_plugins.checkpoint.weights.files import read_safetensors, write_safetensors, written
from lightloop_plugins.checkpoint.weights.filling import fill

M = TypeVar("M", bound=nn.Module)


def folder_at(place: str | os.PathLike[str]) -> tuple[Folder, str | None] | None:
    """The folder that a checkpoint at ``place`` is in, and its name; no name where ``place`` is a folder or a run."""
    text = os.fspath(place).rstrip("/") or "/"
    if os.path.isfile(text):
        raise CheckpointError(
            f"{text} is no checkpoint of Lightloop: lightloop checkpoint import {text} TARGET makes one"
        )
    parent, _, name = text.rpartition("/")
    if name.startswith((PREFIX, EXCEPTION)) and is_name(name):
        return folder_of(parent or "."), name
    return next(((folder, None) for folder in (folder_of(text), folder_in(text)) if folder.names()), None)


def load_path(
    place: str | os.PathLike[str], aside: bool = False, shards: Shards = "whole", limit: int | None = None
) -> Found:
    """The checkpoint at ``place``, or the newest one in it where it is a folder of them or of a run.

    Args:
        place: the path or URL.
        aside: whether damaged ones that are passed over are renamed.
        shards: what becomes of tensors that several ranks have written.
        limit: refuse more bytes than that.

    Raises:
        CheckpointError: if there is none.
    """
    if (there := folder_at(place)) is not None:
        folder, name = there
        if name is not None:
            return load_one(folder, name, limit, shards)
        if (found := load_newest(folder, limit, aside, shards)) is not None:
            return found
    raise CheckpointError(
        f"there is no checkpoint at {os.fspath(place)}: give the path of one, of a run or of a folder of them, or 'auto' for the newest"
    )


class Weights(dict[str, Any]):
    """Weights by the names of ``module.state_dict()``, and the fingerprints of those that a partial checkpoint lacks."""

    left_out: LeftOut = MappingProxyType({})


def weights_of(state: Mapping[str, Any]) -> Weights:
    """The weights in a checkpoint's state."""
    found = Weights(_weights_in(state["module"]))
    found.left_out = state["module"].get("left_out", {})
    return found


def _weights_in(module: Mapping[str, Any]) -> dict[str, Any]:
    if "weights" in module:
        return dict(module["weights"])
    transient = set(module["transient"])
    weights = {**module["parameters"], **{n: b for n, b in module["buffers"].items() if n not in transient}}
    weights |= {name: weights[first] for name, first in module["tied"].items() if first in weights}
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
    fill(module, read_weights(place, allowance(module))[0], str(place), strict)


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
    weights, saved = read_weights(place)
    wanted = inspect.signature(cls).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
    sources = {name: source for name, source in saved.sources.items() if name in wanted}
    whole = {name for _, names in sources.values() for name in names}
    given = {name: value for name, value in saved.items() if name in wanted or (anything and name not in whole)}
    for name, (kind, names) in sources.items():
        entries = {each: saved[each] for each in names if each in saved}
        given[name] = argparse.Namespace(**entries) if kind == "namespace" else Hyperparameters(entries)
    given |= arguments
    try:
        module = cls(**given)
    except TypeError as error:
        raise CheckpointError(
            f"{cls.__name__} cannot be built with the saved hyperparameters ({', '.join(saved) or 'none'}): {error}. "
            "Pass what is missing to load_from_checkpoint, or call save_hyperparameters() in its constructor"
        ) from error
    fill(module, weights, str(place), strict)
    return module


def read_weights(place: str | os.PathLike[str], limit: int | None = None) -> tuple[dict[str, Any], Hyperparameters]:
    """The weights and the hyperparameters at a place, where they have no more than ``limit`` bytes."""
    if os.fspath(place).endswith(".safetensors"):
        weights, saved = read_safetensors(place, limit)
        return weights, Hyperparameters(saved)
    state = load_path(place, limit=limit).state
    found = Hyperparameters(state.get("hparams", {}))
    found.sources = state.get("hparams_sources", {})
    return weights_of(state), found


def export_weights(place: str | os.PathLike[str], target: str | os.PathLike[str], ema: bool = False) -> Found:
    """Write the weights of a checkpoint to a ``.safetensors`` file, or to a ``.pt`` file that holds a ``state_dict``.

    Args:
        place: see :func:`load_path`; nothing is renamed.
        target: the file.
        ema: take the averages that the plugin ``ema`` keeps, in place of the weights that were trained.

    Raises:
        CheckpointError: if there is none, or it has no averages.
    """
    found = load_path(place)
    weights = dict(weights_of(found.state)) | (average_of(found.state, str(place)) if ema else {})
    if os.fspath(target).endswith(".safetensors"):
        tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
        write_safetensors(tensors, target, found.state.get("hparams"))
    else:
        with written(target) as stream:
            torch.save({name: v.clone() if isinstance(v, Tensor) else v for name, v in weights.items()}, stream)
    return found


def average_of(state: Mapping[str, Any], what: str) -> dict[str, Tensor]:
    """The averaged weights in a checkpoint's state."""
    average = state.get("plugins", {}).get("ema", {}).get("state", {}).get("average")
    if not average:
        plugins = ", ".join(state.get("plugins", {})) or "none"
        raise CheckpointError(
            f"{what} has no averaged weights: the plugin 'ema' keeps them; plugins there are {plugins}"
        )
    return dict(average)


def take_hyperparameters(module: nn.Module) -> dict[str, Any]:
    """What ``module.hparams`` has that can be stored, and where it is from; what cannot is left out with a warning, once."""
    found = getattr(module, "hparams", None)
    kept = {}
    for name, value in found.items() if isinstance(found, Mapping) else ():
        try:
            encode(value, {})
        except CheckpointError as error:
            warn(f"hyperparameter {name!r} is not in the checkpoint: {error}")
        else:
            kept[str(name)] = value
    sources = {name: list(source) for name, source in getattr(found, "sources", {}).items()}
    return {"hparams": kept, **({"hparams_sources": sources} if sources else {})}
