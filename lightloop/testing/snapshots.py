"""The whole state of a run as lines of text, by the path to each value, and where two of them differ."""

from __future__ import annotations

import hashlib
import io
import random
import types
from collections import deque
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightloop import Loop, Plugin, Trainer
from lightloop.host.options import options_of
from lightloop.host.plugin_state import HOST
from lightloop.metrics import Running
from lightloop.state import State

Snapshot = dict[str, str]

OF_THE_BATCH = (
    "batch", "gradients", "held", "is_last_batch", "loss", "optimizer", "optimizer_idx", "output", "piece", "piece_idx",
    "pieces", "replaying", "share", "skip_batch_reason", "skip_step_reason", "stepped", "weight", "window",
)  # fmt: skip
"""Attributes of the loop that each batch sets before they are read."""
OF_THE_PROCESS = (
    "asked", "device", "epoch_finished", "eval_loaders", "eval_sources", "evaluation", "evaluation_arguments", "frequencies",
    "hook", "module_name", "plugins", "stage", "stash", "step_arguments", "train_loader", "train_source", "trainer",
    "training_step", "world",
)  # fmt: skip
"""Attributes of the loop that a fit makes anew, or that tell where it runs."""
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device))
"""Whose values are told as they are written."""
OPAQUE = (Plugin, State, Trainer, io.IOBase, type, types.ModuleType, types.FunctionType, types.MethodType)
"""What is compared by its type alone."""
WHOLE = (*OPAQUE, Tensor, torch.Generator, random.Random)
"""What is one value, though it has attributes."""
DEPTH = 12
"""How deep an object is looked into."""


def snapshot(loop: Loop, root: Path | str = "") -> Snapshot:
    """All that decides what comes next, each value under its path; paths of files are told from ``root`` on.

    Whatever the loop or a plugin has is in it, save what is declared to be of the batch, of the process or an option; so
    an attribute that is new is compared from the beginning.
    """
    kept = {name: value for name, value in vars(loop).items() if name not in (*OF_THE_BATCH, *OF_THE_PROCESS)}
    kept = {name: value for name, value in kept.items() if not name.startswith("_")}
    tree = {
        **kept,
        "modes": [part.training for part in loop.module.modules()],
        "gradients": {name: parameter.grad for name, parameter in loop.module.named_parameters()},
        "frozen": [name for name, parameter in loop.module.named_parameters() if not parameter.requires_grad],
        "random": dict(
            zip(("python", "numpy", "torch"), (_hash(repr(each).encode()) for each in generators()), strict=True)
        ),
        "plugins": {plugin.key: attributes(plugin) for plugin in loop.plugins},
    }
    found = lines(tree)
    return {path: text.replace(f"{root}/", "") for path, text in found.items()} if root else found


def generators() -> tuple[Any, ...]:
    """Where the global generators of random numbers are."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), (np.asarray(keys).tobytes(), *rest), torch.get_rng_state().numpy().tobytes()


def attributes(plugin: Plugin) -> dict[str, Any]:
    """The attributes of ``plugin`` that a resumed run must have as they were: all that it does not declare otherwise."""
    options = {field.name for field in options_of(type(plugin)).values()}
    apart = {*options, *type(plugin).transient, *HOST}
    return {name: value for name, value in vars(plugin).items() if name not in apart}


def lines(value: Any) -> Snapshot:
    """Each value that is found in ``value``, as text, by the path to it."""
    found: Snapshot = {}
    _collect(value, "", 0, found)
    return found


def _collect(value: Any, path: str, depth: int, found: Snapshot) -> None:
    if type(value) in PLAIN:
        found[path] = repr(value)
        return
    parts = None if depth > DEPTH else _parts(value)
    if parts is None:
        found[path] = _text(value)
        return
    before = f"{path}." if path else ""
    found[f"{before}#"] = str(len(parts))
    for name, part in parts.items():
        _collect(part, f"{before}{name}", depth + 1, found)


def differing(one: Snapshot, other: Snapshot, unsteady: tuple[str, ...] = ()) -> list[str]:
    """The paths at which two snapshots are not the same, without those that a pattern of ``unsteady`` names."""
    paths = [path for path in {**one, **other} if one.get(path) != other.get(path)]
    return [path for path in paths if not any(fnmatch(path, pattern) for pattern in unsteady)]


def digest(value: Any) -> str:
    """A short text for a value that may be large, such as a batch."""
    return _hash("\n".join(f"{path} {text}" for path, text in lines(value).items()).encode())


def _parts(value: Any) -> dict[Any, Any] | None:
    """What there is in ``value`` by name or number; None if it is one value."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple, deque)):
        return dict(enumerate(value))
    if isinstance(value, Running):
        return {name: getattr(value, name) for name in ("reduce", "pairs", "name", "folded", "even")}
    if isinstance(value, WHOLE):
        return None
    if isinstance(value, (nn.Module, torch.optim.Optimizer)) or callable(getattr(value, "state_dict", None)):
        return dict(value.state_dict())
    if not hasattr(value, "__dict__") or type(value).__module__ in ("builtins", "threading", "pathlib", "numpy"):
        return None
    apart = getattr(type(value), "transient", ())
    return {name: part for name, part in vars(value).items() if name not in apart}


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        plain = (
            f"{dense.item()!r}"
            if dense.numel() == 1
            else _hash(dense.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        )
        return f"{dense.dtype} {tuple(dense.shape)} {plain}"
    if isinstance(value, torch.Generator):
        return _hash(value.get_state().numpy().tobytes())
    if isinstance(value, (random.Random, np.random.Generator)):
        return _hash(repr(value.getstate() if isinstance(value, random.Random) else value.bit_generator.state).encode())
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {_hash(value.tobytes())}"
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(repr, value)))
    return repr(value) if isinstance(value, (*PLAIN, Path)) else f"a {type(value).__qualname__}"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
