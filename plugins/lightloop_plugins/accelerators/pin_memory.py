"""Load batches into pinned memory."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch.utils.data import DataLoader

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import remade
from lightloop_plugins.accelerators._device.transfer import STREAMS


class PinMemory(Plugin):
    """Read every DataLoader as if created with ``pin_memory=True``, if the device is a GPU.

    Batches in such memory are copied while the GPU computes; they take memory that the system cannot use otherwise, and
    a thread. Loaders of other kinds stay as they are.
    """

    name = "pin_memory"
    after = ("accelerator", "fast_dev_run", "limits", "overfit", "shard_data")

    on: bool = option(
        False, "Read DataLoaders with pin_memory=True if the device is a GPU.", flag="pin_memory", switch=True
    )

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.device.type not in STREAMS:
            loop.opt_out(self)

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop) -> Generator[None, Any, Any]:
        loader = yield
        return remade(loader, pin_memory=True) if isinstance(loader, DataLoader) else loader
