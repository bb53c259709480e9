"""Set the number of devices."""

from __future__ import annotations

from typing import Literal

import torch

from lightloop import Loop, Plugin, hookimpl, option
from lightloop_plugins.accelerators._horovod import launched
from lightloop_plugins.accelerators._launcher.environment import DEVICES, NODES, environment


class Devices(Plugin):
    """Tell the strategy how many devices of how many machines to use.

    Where no launcher has started a process for each of them, the strategy starts those of this machine.
    """

    name = "devices"
    before = ("strategy",)
    after = ("accelerator",)
    requires = ("strategy",)

    devices: int | Literal["auto"] | None = option(
        None,
        "Number of devices to train on per machine; 'auto' and -1 use all of them, or one process on the CPU.",
        flag="devices",
        aliases=("num_processes",),
    )
    nodes: int | None = option(
        None,
        "Number of machines to train on, each started by a launcher.",
        flag="num_nodes",
        aliases=("nb_gpu_nodes",),
    )

    def validate(self) -> None:
        if isinstance(self.devices, int) and self.devices < 1 and self.devices != -1:
            raise self.invalid("devices", "a whole number from 1, or 'auto'")
        if self.nodes is not None and self.nodes < 1:
            raise self.invalid("nodes", "a whole number from 1")

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if self.nodes is not None:
            loop.stash[NODES] = self.nodes
        if self.devices in ("auto", -1):
            if environment() is not None or launched():  # a launcher has decided
                return
            found = torch.accelerator.current_accelerator()
            if loop.device.type == "cpu":
                loop.stash[DEVICES] = 1
            elif found is not None and found.type == loop.device.type:  # else the strategy knows
                loop.stash[DEVICES] = torch.accelerator.device_count()
        elif self.devices is not None:
            loop.stash[DEVICES] = int(self.devices)
