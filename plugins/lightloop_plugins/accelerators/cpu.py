"""Train on the CPU."""

from __future__ import annotations

import torch

from lightloop_plugins.accelerators._device.place import Device


class Cpu(Device):
    """Train on the CPU, the default device."""

    name = "cpu"
    default = True
    asked = False

    def device(self) -> torch.device:
        return torch.device("cpu")
