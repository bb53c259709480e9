"""What the device plugins share: where things go, and how a module and a batch get there."""

from __future__ import annotations

import copy
import dataclasses
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lightloop import Loop, Plugin, defined, hookimpl
from lightloop_plugins.accelerators._distributed import environment

_LEAVES = (str, bytes, bytearray, int, float, complex, type(None))


class Device(Plugin):
    """Place the module in ``setup``, and each batch once before it is used.

    A batch may be any nesting of tensors, packed sequences, mappings, sequences, named tuples and dataclasses, and of
    anything that has ``.to(device)``; containers keep their type, and what is already there is not copied. A module that
    defines ``transfer_batch_to_device(batch, device)`` does it itself, on every device, the CPU included.
    """

    group = "accelerator"
    asked: ClassVar[bool] = True
    """Whether it is live only if somebody chose it; if not, a module that is elsewhere is moved with a warning."""

    def device(self) -> torch.device:
        """The device, with its index.

        Raises:
            RuntimeError: if this machine has none of the kind.
        """
        raise NotImplementedError

    def check(self) -> None:
        self._by_module: Callable[..., Any] | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        loop.device = self.device()
        self._by_module = defined(loop.module, "transfer_batch_to_device")
        place(loop.module, loop.device, quietly=self.asked)
        alone = loop.device.type == "cpu" and torch.accelerator.current_accelerator(check_available=True) is None
        if alone and self._by_module is None:
            loop.leave_out(self, "move_batch")  # on a machine with the CPU alone, nothing can be elsewhere

    @hookimpl
    def move_batch(self, loop: Loop, batch: Any) -> Any:
        return move(batch, loop.device) if self._by_module is None else self._by_module(batch, loop.device)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._by_module = None


def local_index() -> int:
    """The device of a process whose launcher says which one of its machine it is; else the first."""
    place = environment()
    return int(os.environ.get("LOCAL_RANK", "0")) if place is None else place.local_rank


def existing(kind: str, index: int | None, said: str) -> torch.device:
    """The device number ``index`` of a kind that :mod:`torch.accelerator` knows; ``said`` is what the user wrote.

    Raises:
        RuntimeError: if there is no such device; the message has those that there are.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if kind == "cpu":
        return torch.device("cpu")
    index = local_index() if index is None else index
    if found is None or found.type != kind or index >= torch.accelerator.device_count():
        raise RuntimeError(
            f"{said} asks for device {kind}:{index}, which this machine does not offer to torch {torch.__version__}; "
            f"there {_are_available()}"
        )
    device = torch.device(kind, index)
    torch.accelerator.set_device_index(index)
    return device


def place(module: nn.Module, device: torch.device, quietly: bool) -> None:
    """Move ``module`` to ``device``; parameters that are shared stay so."""
    elsewhere = next((tensor.device for tensor in module.parameters() if tensor.device != device), None)
    if elsewhere is not None and not quietly:
        warnings.warn(
            f"the module was on {elsewhere} and is moved to {device}; accelerator={elsewhere.type!r} uses it there",
            stacklevel=3,
        )
    owners = [(part, name, id(value)) for part in module.modules() for name, value in part._parameters.items()]
    module.to(device)
    first: dict[int, nn.Parameter | None] = {}
    for part, name, identity in owners:  # torch makes a new parameter where the old one cannot change its device
        part._parameters[name] = first.setdefault(identity, part._parameters[name])


def move(value: Any, device: torch.device) -> Any:
    """``value`` with everything in it on ``device``; the very same object if it is there already."""
    if isinstance(value, Tensor):
        if value.device == device:
            return value
        return value.to(device, non_blocking=device.type != "cpu" and _is_pinned(value))
    kind = type(value)
    if kind is tuple or kind is list:  # what nearly every batch is; the tests below cost microseconds
        return _move_sequence(value, device)
    if kind is dict:
        return _move_mapping(value, device)
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, PackedSequence):
        to: Any = value.to  # its types know no device
        return to(device, non_blocking=device.type != "cpu" and _is_pinned(value.data))
    if callable(to := getattr(value, "to", None)):
        moved = to(device)
        return value if moved is None else moved  # some move in place and return nothing
    if isinstance(value, Mapping):
        return _move_mapping(value, device)
    if isinstance(value, Sequence):
        return _move_sequence(value, device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _move_dataclass(value, device)
    return value


def _move_mapping(value: Mapping[Any, Any], device: torch.device) -> Any:
    moved = {key: move(part, device) for key, part in value.items()}
    if _same(moved.values(), value.values()):
        return value
    if not isinstance(value, MutableMapping):
        return cast(Callable[[Any], Any], type(value))(moved)
    clone = copy.copy(value)  # keeps what a type has beside its items: a defaultdict its factory
    clone.update(moved)
    return clone


def _move_sequence(value: Sequence[Any], device: torch.device) -> Any:
    moved = [move(part, device) for part in value]
    if _same(moved, value):
        return value
    if isinstance(value, tuple):
        return value._make(moved) if hasattr(value, "_make") else type(value)(moved)
    if isinstance(value, MutableSequence):
        clone = copy.copy(value)
        for index, part in enumerate(moved):
            clone[index] = part
        return clone
    return cast(Callable[[Iterable[Any]], Any], type(value))(moved)


def _move_dataclass(value: Any, device: torch.device) -> Any:
    parts = {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)
    }
    moved = {name: move(part, device) for name, part in parts.items()}
    if _same(moved.values(), parts.values()):
        return value
    clone = copy.copy(value)
    for name, part in moved.items():
        object.__setattr__(clone, name, part)  # a frozen one forbids setattr
    return clone


def _same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return all(map(operator.is_, new, old))


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_pinned()


def _are_available() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return "is the CPU alone (accelerator='cpu')"
    count = torch.accelerator.device_count()
    return f"are the CPU and {count} of {found.type} (accelerator='cpu', accelerator={found.type!r})"
