"""The random numbers of a process: Python's, numpy's, torch's, those of the accelerators, and generators of the user's."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lightloop_plugins.checkpoint.errors import CheckpointError

_KNOWN: dict[type, bool] = {}
"""Types of which is known whether they are generators: each save asks it of everything that the module has."""


def take_global() -> dict[str, Any]:
    """Where the global generators are, as a plain tree."""
    state: dict[str, Any] = {"python": _from_python(random.getstate()), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), *[plain(part) for part in rest]]
    if (backend := accelerator()) is not None:
        state["devices"] = [backend.get_rng_state(index).cpu() for index in range(backend.device_count())]
    return state


def set_global(state: Mapping[str, Any]) -> None:
    """Put the global generators there."""
    random.setstate(_to_python(state["python"]))
    torch.set_rng_state(state["torch"].clone())
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    backend = accelerator()
    if backend is not None:
        for index, each in enumerate(state.get("devices", ())[: backend.device_count()]):
            backend.set_rng_state(each.clone(), index)


def try_global(state: Mapping[str, Any]) -> None:
    """Raise what :func:`set_global` would; the generators stay where they are."""
    with keep_global():
        set_global(state)


@contextmanager
def keep_global() -> Iterator[None]:
    """Have the global generators where they were afterwards."""
    now = take_global()
    try:
        yield
    finally:
        set_global(now)


def generators_of(parts: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Generators that the user keeps in attributes of the module or its ``parts``, by the path to them."""
    found = {}
    for path, part in parts.items():
        for name, value in vars(part).items():
            kind = type(value)
            if _KNOWN[kind] if kind in _KNOWN else is_generator(value):
                found[f"{path}.{name}".lstrip(".")] = value
    return found


def take_all(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Where each of ``generators`` is, as a plain tree."""
    return {name: _take(generator) for name, generator in generators.items()}


def set_all(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Put each of ``generators`` there; those of which nothing is known stay where they are."""
    for name, generator in generators.items():
        if name in states:
            _set(generator, states[name])


def check_all(generators: Mapping[str, Any], states: Mapping[str, Any], what: str) -> None:
    """Refuse states of generators that are not there, or of another kind."""
    for name, state in states.items():
        if name not in generators or _take(generators[name])[0] != state[0]:
            raise CheckpointError(
                f"{what} has the state of a generator {name!r} of kind {state[0]!r}, which is not there now"
            )


def try_all(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Raise what :func:`set_all` would; the generators stay where they are."""
    now = take_all(generators)
    try:
        set_all(generators, states)
    finally:
        set_all(generators, now)


def accelerator() -> Any:
    """The ``torch.cuda``-like module of the accelerator that has been used, if any."""
    device = torch.accelerator.current_accelerator()
    backend = getattr(torch, device.type, None) if device is not None else None
    used = backend is not None and getattr(backend, "is_initialized", lambda: True)()
    return backend if used and hasattr(backend, "get_rng_state") and hasattr(backend, "device_count") else None


def is_generator(value: Any) -> bool:
    """Whether it is a source of random numbers with a state."""
    kind = type(value)
    if (known := _KNOWN.get(kind)) is None:
        numpy = sys.modules.get("numpy")
        kinds = (torch.Generator, random.Random, *((numpy.random.Generator, numpy.random.RandomState) if numpy else ()))
        known = _KNOWN[kind] = issubclass(kind, kinds) and not issubclass(kind, random.SystemRandom)
    return known


def _take(generator: Any) -> list[Any]:
    if isinstance(generator, torch.Generator):
        return ["torch", generator.get_state().cpu()]
    if isinstance(generator, random.Random):
        return ["python", _from_python(generator.getstate())]
    if hasattr(generator, "bit_generator"):
        return ["numpy", plain(generator.bit_generator.state)]
    return ["numpy state", plain(generator.get_state(legacy=False))]


def _set(generator: Any, state: list[Any]) -> None:
    kind, value = state
    if kind == "torch":
        generator.set_state(value.clone())
    elif kind == "python":
        generator.setstate(_to_python(value))
    elif kind == "numpy":
        generator.bit_generator.state = value
    else:
        generator.set_state(value)


def _from_python(state: Any) -> list[Any]:
    version, numbers, gauss = state
    packed = bytearray(struct.pack(f"{len(numbers)}q", *numbers))  # torch.tensor goes through them five times as long
    return [version, torch.frombuffer(packed, dtype=torch.int64), gauss]


def _to_python(state: Any) -> Any:
    version, numbers, gauss = state
    return version, tuple(numbers.tolist()), gauss


def plain(value: Any) -> Any:
    """A tree with numpy's numbers and arrays in it as Python's."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return value
