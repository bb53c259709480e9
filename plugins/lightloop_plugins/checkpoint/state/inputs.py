"""What a run is given that its numbers depend on: data, hyperparameters, optimizers, schedules; as texts that compare."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from lightloop import Loop, Plugin
from lightloop.toolkit import size_of
from lightloop_plugins.checkpoint.format.safetensors import raw
from lightloop_plugins.checkpoint.state.reading import innermost

SHOWN = 120
"""How long a text may be; of one that is longer, the rest is a number that changes with it."""
SHOWN_OPTION = 200
"""How long the text of an option's value may be."""
ROWS, VALUES = 8, 64
"""Of data in memory so many rows are looked at, and so many values of each."""
PROBES = (1, 2, 5, 10, 100, 1000, 10000)
"""Where a function of the step is asked for the rate, to tell it from another."""
OPTION = "lightloop.option"
"""Under which key the metadata of a field tells that it is an option."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe_inputs(loop: Loop) -> dict[str, str]:
    """Everything that the run is given, by what it is; asked before a resumed run has put anything back."""
    found = {f"data: {name}": value for name, value in _data(innermost(loop.train_loader)).items()}
    for index, optimizer in enumerate(loop.optimizers):
        name = f"optimizer {index} ({type(optimizer).__name__})"
        for key in sorted({key for group in optimizer.param_groups for key in group} - {"params", "initial_lr"}):
            values = [group.get(key) for group in optimizer.param_groups]
            found[f"{name}: {key}"] = values[0] if all(_text(v) == _text(values[0]) for v in values) else values
    for index, schedule in enumerate(loop.schedules):
        scheduler = schedule.scheduler
        state = scheduler.state_dict() if hasattr(scheduler, "state_dict") else {}
        found |= {f"scheduler {index} ({type(scheduler).__name__}): {key}": value for key, value in state.items()}
        found |= {f"scheduler {index} (rates): {n}": value for n, value in _rates(scheduler)}
    hyperparameters = getattr(loop.module, "hparams", None)
    if isinstance(hyperparameters, Mapping):
        found |= {f"hyperparameter {name}": value for name, value in hyperparameters.items()}
    return {name: text for name, value in found.items() if (text := _text(value)) is not None}


def changed_options(plugin: Plugin, was: Mapping[str, str]) -> list[str]:
    """Which options of ``plugin`` are others than ``was``, a line each; those are left out that change no number."""
    if not has_state(plugin) and {"gradients", "parameters", "random"}.isdisjoint(plugin.disturbs):
        return []
    told = [name for name, option in options_of(plugin).items() if name in was and not option.neutral]
    then = {f"{plugin.key}.{name}": _ADDRESS.sub("", was[name]) for name in told}
    return changes(then, {f"{plugin.key}.{name}": _ADDRESS.sub("", shown(getattr(plugin, name))) for name in told})


def options_of(plugin: Plugin) -> dict[str, Any]:
    """What is known of each option of ``plugin``; other fields of its class are constructor arguments alone."""
    fields: Iterable[dataclasses.Field[Any]] = dataclasses.fields(plugin)  # type: ignore[arg-type]
    return {field.name: field.metadata[OPTION] for field in fields if OPTION in field.metadata}


def has_state(plugin: Plugin) -> bool:
    """Whether a checkpoint holds something of ``plugin``; it may not be ready yet to say what."""
    return bool(plugin.state) or type(plugin).state_dict is not Plugin.state_dict


def shown(value: object) -> str:
    """An option's value as a text."""
    return repr(value)[:SHOWN_OPTION]


def changed_inputs(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In what the run is given something else than ``was``; other optimizers and schedulers are refused elsewhere."""
    made = [name for name in {**was, **now} if name.startswith(("optimizer", "scheduler"))]
    odd = {name for name in made if name not in was or name not in now}
    return changes(*({name: text for name, text in each.items() if name not in odd} for each in (was, now)))


def changes(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In what ``now`` differs from ``was``, a line each."""
    return [
        f"{name}: then {was.get(name, 'none')}, now {now.get(name, 'none')}"
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]


def _data(loader: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"batches": size_of(loader)}
    if isinstance(loader, DataLoader):
        dataset, batches = loader.dataset, loader.batch_sampler
        found["samples"] = size_of(dataset)  # type: ignore[arg-type]
        found["batch size"] = getattr(batches, "batch_size", loader.batch_size)
        if not isinstance(dataset, IterableDataset):
            sampler = getattr(batches, "sampler", batches if batches is not None else loader.sampler)
            found["order"] = type(sampler).__name__
        found["values"] = _fingerprint(dataset)
    elif isinstance(loader, (list, tuple)):
        found["values"] = _fingerprint(loader)
    return found


def _fingerprint(data: Any) -> str | None:
    """A number that changes with the values of data in memory; nothing is read of any other."""
    digest = hashlib.sha256()
    return digest.hexdigest()[:12] if all(_hash(digest, part) for part in _parts(data)) else None


def _parts(data: Any) -> list[Any]:
    """What data in memory consists of."""
    if isinstance(data, Subset):
        return [*_parts(data.dataset), list(data.indices)]
    if isinstance(data, ConcatDataset):
        return [part for each in data.datasets for part in _parts(each)]
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, (list, tuple)) and all(isinstance(each, Tensor) for each in tensors):
        return list(tensors)
    return [data]


def _hash(digest: Any, part: Any) -> bool:
    """Take in some of ``part``; whether that can be done."""
    if isinstance(part, Tensor) and part.layout is torch.strided and part.device.type != "meta":
        digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
        for row in _some(part if part.ndim else part.reshape(1)):
            digest.update(raw(row.detach().reshape(-1)[:VALUES]))
        return True
    if isinstance(part, (bool, int, float, str, bytes, type(None))):
        digest.update(repr(part)[:VALUES].encode())
        return True
    if isinstance(part, Mapping):
        return all(_hash(digest, each) for each in _some(list(part.items())))
    if isinstance(part, (list, tuple)):
        digest.update(str(len(part)).encode())
        return all(
            _hash(digest, each) for each in _some(tuple(part))
        )  # a subclass may have another length than it says
    if isinstance(mark := getattr(part, "_fingerprint", None), str):  # of Hugging Face's data sets
        digest.update(mark.encode())
        return True
    return False


def _some(rows: Any) -> Iterator[Any]:
    """A few of ``rows``, from its first to its last."""
    length = len(rows)
    return (rows[index] for index in sorted({n * (length - 1) // (ROWS - 1) for n in range(ROWS)} if length else ()))


def _rates(scheduler: Any) -> Iterator[tuple[str, Any]]:
    """What the functions in a scheduler answer at some steps; its state does not hold functions."""
    for number, function in enumerate(getattr(scheduler, "lr_lambdas", ())):
        for step in PROBES:
            try:
                yield f"function {number} at {step}", float(function(step))
            except Exception:
                return  # it is not defined so far out


def _text(value: Any) -> str | None:
    """``value`` as a text, if it is plain."""
    plain = _plain(value)
    return None if plain is None else _short(plain)


def _plain(value: Any) -> str | None:
    if isinstance(value, Tensor):
        return repr(value.tolist()) if value.numel() <= VALUES and value.layout is torch.strided else None
    if isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Mapping):
        items = [(str(key), _plain(part)) for key, part in value.items()]
        return "{" + ", ".join(f"{key}: {text}" for key, text in items if text is not None) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_plain(part) for part in value]
        return f"[{', '.join(part for part in (sorted(map(str, parts)) if isinstance(value, (set, frozenset)) else map(str, parts)))}]"
    return None


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({zlib.crc32(text.encode()):08x})"
