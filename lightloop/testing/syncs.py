"""Find where a run makes the host wait for the device: by reading the values of tensors, or copying some to the device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightloop import Hooks, Plugin

CALLS = {
    *("item", "tolist", "numpy", "cpu", "is_nonzero", "__array__"),
    *("__bool__", "__float__", "__int__", "__index__", "__complex__", "__contains__", "__repr__", "__format__"),
}
"""Methods of a tensor that need its values."""
OPERATORS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_consecutive"}
"""Operators that do, whoever calls them: their result, or its shape, depends on values."""
MAKERS = {"tensor", "as_tensor", "asarray"}
"""Functions that copy what they are given to a device, and wait for it."""
TORCH = os.path.dirname(torch.__file__) + os.sep
OPTIMIZERS = TORCH + "optim" + os.sep
OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep


@dataclass(frozen=True)
class Sync:
    """One read of a tensor's value, or one copy to a device that waits."""

    what: str
    """What was called, such as "item"."""
    where: str
    """File, line and function of the innermost code that is not torch's."""
    hook: str | None
    """The hook in which it happened, if any."""
    plugin: str | None
    """The key of the plugin that did it; None where it was the user's code or the loop."""

    def __str__(self) -> str:
        by = f"plugin {self.plugin!r}" if self.plugin else "no plugin"
        return f"{self.what} in {self.hook or 'no hook'} by {by}, at {self.where}"


@contextmanager
def count_syncs() -> Iterator[list[Sync]]:
    """Collect every read of a tensor's value while the context is open, on any device, the CPU included.

    With them is every copy from the host to a device that is not ``non_blocking``, such as ``torch.tensor(1.0,
    device="cuda")``: it waits for all that the device has to do. That optimizers of torch read their count of steps is left out: they keep it on the CPU.

    .. code-block:: python

        with count_syncs() as syncs:
            Trainer(...).fit(module, batches)
        assert [str(sync) for sync in syncs if sync.hook] == []
    """
    syncs: list[Sync] = []
    calls = _Calls(syncs)
    with _Operators(syncs, calls), calls:
        yield syncs


class _Calls(TorchFunctionMode):
    def __init__(self, syncs: list[Sync]) -> None:
        super().__init__()
        self.syncs = syncs
        self.inside = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.__name__
        leaves = name == "to" and _leaves_device(*args, **(kwargs or {}))
        if name not in CALLS and not leaves and not (name in MAKERS and _makes_there(*args, **(kwargs or {}))):
            return func(*args, **(kwargs or {}))
        _record(self.syncs, name)
        self.inside = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside = False


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, syncs: list[Sync], calls: _Calls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.syncs = syncs
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        waits = name in OPERATORS or (name in FILLS and FILLS[name](*args, **(kwargs or {})))
        if waits and not self.calls.inside:
            _record(self.syncs, name)
        return func(*args, **(kwargs or {}))


def _leaves_device(tensor: Any, *args: Any, **kwargs: Any) -> bool:
    targets = [value for value in (*args, *kwargs.values()) if isinstance(value, (str, torch.device))]
    return tensor.device.type != "cpu" and any(torch.device(target).type == "cpu" for target in targets)


def _makes_there(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> bool:
    return _is_device(device) and not (isinstance(data, Tensor) and _is_device(data.device))


def _copy_waits(source: Tensor, *, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> bool:
    return not non_blocking and source.device.type == "cpu" and _is_device(device)


def _fill_waits(target: Tensor, source: Tensor, non_blocking: bool = False) -> bool:
    return not non_blocking and source.device.type == "cpu" and _is_device(target.device)


def _is_device(device: Any) -> bool:
    return device is not None and torch.device(device).type not in ("cpu", "meta")


FILLS: dict[str, Callable[..., bool]] = {"_to_copy": _copy_waits, "copy_": _fill_waits}
"""Operators that may copy to a device, each with what says whether a call waits for it."""


def _record(syncs: list[Sync], what: str) -> None:
    frames = [frame for frame in _frames(sys._getframe(2)) if frame.f_code.co_filename != __file__]
    files = [frame.f_code.co_filename for frame in frames]
    if files and files[0].startswith(OPTIMIZERS):
        return
    reader = next((frame for frame in frames if not frame.f_code.co_filename.startswith(TORCH)), frames[0])
    syncs.append(
        Sync(
            what,
            f"{os.path.basename(reader.f_code.co_filename)}:{reader.f_lineno} in {reader.f_code.co_name}",
            next(filter(None, map(_hook, frames)), None),
            next((frame.f_locals["self"].key for frame in frames if _is_plugins(frame)), None),
        )
    )


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _hook(frame: FrameType) -> str | None:
    """The hook whose call ``frame`` is: a compiled one, an implementation, or the loop's own answer called straight."""
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    known = hasattr(Hooks, name) and (_is_plugins(frame) or file.startswith(OWN))
    return name if file.startswith("<hook ") or known else None


def _is_plugins(frame: FrameType) -> bool:
    return isinstance(frame.f_locals.get("self"), Plugin)
