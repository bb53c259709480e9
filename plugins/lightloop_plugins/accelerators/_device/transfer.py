"""How a batch gets to a device: each tensor in it once, and without waiting for what the device still has to do."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

BLOCKING = ("cpu", "mps")
"""Types of devices to which a copy that does not wait may be wrong, or is of no use."""
STREAMS = ("cuda", "xpu")
"""Types of devices that copy on one stream while they compute on another."""
WORTH = 2**18
"""Bytes from which a tensor goes by the side stream; a smaller one is copied in the time that it takes to change streams."""
AHEAD = 8
"""How many batches may wait on the device for what was before them: so many of them fill its memory, and no more."""
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None))


class SideStream:
    """A stream that copies batches out of pinned memory while the device computes on those before.

    The program is mostly ahead of the device: when it moves a batch, the kernels of earlier ones are still queued. Copied
    by the same stream, the batch would be behind them, and the device idle while it is copied. So nothing has to be read
    ahead of its time. The current stream waits for the copies; what was copied is not given to others before that stream
    is done with it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.Stream(device)
        self.copied: list[Tensor] = []
        self.passed: deque[torch.Event] = deque()

    def move(self, batch: Any) -> Any:
        """``batch`` with everything in it on the device, for use on the current stream."""
        self.copied = []
        moved = move(batch, self.device, self._copy)
        if self.copied:
            self._hand_over()
        return moved

    def _copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        plain = type(tensor) is Tensor and tensor.layout is torch.strided  # else a copy may be more than that
        if not plain or tensor.nbytes < WORTH or not is_pinned(tensor):
            return to_device(tensor, device)
        with self.stream:
            self.copied.append(to_device(tensor, device))
        return self.copied[-1]

    def _hand_over(self) -> None:
        current = torch.accelerator.current_stream(self.device)
        self.passed.append(current.record_event())
        current.wait_stream(self.stream)
        for tensor in self.copied:
            tensor.record_stream(current)
        self.copied = []
        if len(self.passed) > AHEAD:
            self.passed.popleft().synchronize()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; torch does not wait, but out of pageable memory the driver does until it has read that."""
    return tensor.to(device, non_blocking=device.type not in BLOCKING)


def is_pinned(tensor: Tensor) -> bool:
    """Whether the device can read ``tensor`` where it is, in memory of the host."""
    return tensor.device.type == "cpu" and tensor.is_pinned()


def move(value: Any, device: torch.device, put: Callable[[Tensor, torch.device], Tensor] = to_device) -> Any:
    """``value`` with everything in it on ``device``; the very same object if it is there already.

    Tensors are moved by ``put``. What has a ``to`` of its own moves itself, on the current stream: it may compute.
    """
    if isinstance(value, Tensor):
        return value if value.device == device else put(value, device)
    kind = type(value)
    if kind is tuple or kind is list:  # what nearly every batch is; the tests below cost microseconds
        return _move_sequence(value, device, put)
    if kind is dict:
        return _move_mapping(value, device, put)
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, PackedSequence):
        data, batch_sizes, *orders = value  # the sizes are for the host
        moved = [move(part, device, put) for part in (data, *orders)]
        return value if _same(moved, (data, *orders)) else kind(moved[0], batch_sizes, *moved[1:])
    if callable(to := getattr(value, "to", None)):
        own = to(device)
        return value if own is None else own  # some move in place and return nothing
    if isinstance(value, Mapping):
        return _move_mapping(value, device, put)
    if isinstance(value, Sequence):
        return _move_sequence(value, device, put)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _move_dataclass(value, device, put)
    return value


def _move_mapping(value: Mapping[Any, Any], device: torch.device, put: Callable[..., Tensor]) -> Any:
    moved = {key: move(part, device, put) for key, part in value.items()}
    if _same(moved.values(), value.values()):
        return value
    if not isinstance(value, MutableMapping):
        return cast(Callable[[Any], Any], type(value))(moved)
    clone = copy.copy(value)  # keeps what a type has beside its items: a defaultdict its factory
    clone.update(moved)
    return clone


def _move_sequence(value: Sequence[Any], device: torch.device, put: Callable[..., Tensor]) -> Any:
    moved = [move(part, device, put) for part in value]
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


def _move_dataclass(value: Any, device: torch.device, put: Callable[..., Tensor]) -> Any:
    parts = {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)
    }
    moved = {name: move(part, device, put) for name, part in parts.items()}
    if _same(moved.values(), parts.values()):
        return value
    clone = copy.copy(value)
    for name, part in moved.items():
        object.__setattr__(clone, name, part)  # a frozen one forbids setattr
    return clone


def _same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return all(map(operator.is_, new, old))
