"""Streams of random numbers, each with its state as bytes, which are compared in no time and stored many as one tensor."""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from lightloop_plugins.checkpoint.state.random_state import accelerator, plain

_PYTHON = struct.Struct("<I625I?d")
_NUMPY = struct.Struct("<H?d")


class Stream(Protocol):
    """Where random numbers come from."""

    def take(self) -> bytes:
        """Where it is."""

    def put(self, state: bytes) -> None:
        """Put it there."""


class TorchStream:
    """Of torch: the global one, a device's, or a generator's."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._get, self._set = get, put

    def take(self) -> bytes:
        state: bytes = self._get().numpy().tobytes()
        return state

    def put(self, state: bytes) -> None:
        self._set(torch.frombuffer(bytearray(state), dtype=torch.uint8))


class PythonStream:
    """Of the module ``random``, or of a ``random.Random``."""

    def __init__(self, generator: Any = random) -> None:
        self._generator = generator

    def take(self) -> bytes:
        version, numbers, gauss = self._generator.getstate()
        return _PYTHON.pack(version, *numbers, gauss is not None, gauss or 0.0)

    def put(self, state: bytes) -> None:
        version, *numbers, cached, gauss = _PYTHON.unpack(state)
        self._generator.setstate((version, tuple(numbers), gauss if cached else None))


class NumpyStream:
    """Of numpy's global generator."""

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy

    def take(self) -> bytes:
        _, keys, place, cached, gauss = self._numpy.random.get_state()
        return bytes(keys.tobytes()) + _NUMPY.pack(place, bool(cached), gauss)

    def put(self, state: bytes) -> None:
        keys = self._numpy.frombuffer(state[: -_NUMPY.size], dtype="uint32")
        place, cached, gauss = _NUMPY.unpack(state[-_NUMPY.size :])
        self._numpy.random.set_state(("MT19937", keys, place, int(cached), gauss))


class JsonStream:
    """Of an object whose state is a plain dict, as numpy's are."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._get, self._set = get, put

    def take(self) -> bytes:
        return json.dumps(plain(self._get())).encode()

    def put(self, state: bytes) -> None:
        self._set(json.loads(state))


def global_streams() -> dict[str, Stream]:
    """Those that everything in the process draws from."""
    found: dict[str, Stream] = {
        "torch": TorchStream(torch.get_rng_state, torch.set_rng_state),
        "python": PythonStream(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = NumpyStream(numpy)
    if (backend := accelerator()) is not None:
        for index in range(backend.device_count()):
            found[f"device {index}"] = _of_device(backend, index)
    return found


def streams_of(generators: Mapping[str, Any]) -> dict[str, Stream]:
    """Those of generators by their paths."""
    return {f"generator {path}": _of_generator(generator) for path, generator in generators.items()}


def _of_device(backend: Any, index: int) -> Stream:
    return TorchStream(lambda: backend.get_rng_state(index).cpu(), lambda state: backend.set_rng_state(state, index))


def _of_generator(generator: Any) -> Stream:
    if isinstance(generator, torch.Generator):
        return TorchStream(lambda: generator.get_state().cpu(), generator.set_state)
    if isinstance(generator, random.Random):
        return PythonStream(generator)
    if hasattr(generator, "bit_generator"):
        return JsonStream(
            lambda: generator.bit_generator.state, lambda state: setattr(generator.bit_generator, "state", state)
        )
    return JsonStream(lambda: generator.get_state(legacy=False), generator.set_state)
