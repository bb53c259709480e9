"""What the device plugins share: which device there is, and how a module gets there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from lightloop import Loop, Plugin, hookimpl
from lightloop.toolkit import defined, warn
from lightloop_plugins.accelerators._device.transfer import STREAMS, SideStream, move
from lightloop_plugins.accelerators._launcher.environment import environment


class Device(Plugin):
    """Place the module in ``setup``, and each batch once before it is used.

    A batch may be any nesting of tensors, packed sequences, mappings, sequences, named tuples and dataclasses, and of
    anything that has ``.to(device)``; containers keep their type, and what is already there is not copied. Tensors in pinned
    memory are copied to a GPU while it still computes on the batches before. A module that defines
    ``transfer_batch_to_device(batch, device)`` does it itself, on every device, the CPU included.
    """

    group = "accelerator"
    transient: ClassVar[tuple[str, ...]] = ("_move",)
    asked: ClassVar[bool] = True
    """Whether it is live only if somebody chose it; if not, a module that is elsewhere is moved with a warning."""

    def device(self) -> torch.device:
        """The device, with its index.

        Raises:
            RuntimeError: if this machine has none of the kind.
        """
        raise NotImplementedError

    def validate(self) -> None:
        self._move: Callable[[Any], Any] | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        loop.device = self.device()
        place(loop.module, loop.device, quietly=self.asked)
        own = defined(loop.module, "transfer_batch_to_device")
        if own is not None:
            self._move = lambda batch: own(batch, loop.device)
        elif loop.device.type in STREAMS:
            self._move = SideStream(loop.device).move
        else:
            self._move = functools.partial(move, device=loop.device)
        alone = loop.device.type == "cpu" and torch.accelerator.current_accelerator(check_available=True) is None
        if alone and own is None:
            loop.opt_out(self, "move_batch")  # on a machine with the CPU alone, nothing can be elsewhere

    @hookimpl
    def move_batch(self, batch: Any) -> Any:
        assert self._move is not None
        return self._move(batch)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._move = None


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
        warn(
            f"the module was on {elsewhere} and is moved to {device}; accelerator={elsewhere.type!r} uses it there",
        )
    owners = [(part, name, id(value)) for part in module.modules() for name, value in part._parameters.items()]
    module.to(device)
    first: dict[int, nn.Parameter | None] = {}
    for part, name, identity in owners:  # torch makes a new parameter where the old one cannot change its device
        part._parameters[name] = first.setdefault(identity, part._parameters[name])


def _are_available() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return "is the CPU alone (accelerator='cpu')"
    count = torch.accelerator.device_count()
    return f"are the CPU and {count} of {found.type} (accelerator='cpu', accelerator={found.type!r})"
