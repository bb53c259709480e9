"""Train on the GPU of an Apple machine."""

from __future__ import annotations

import torch

from lightloop_plugins.accelerators._device.place import Device, existing


class Mps(Device):
    """Train on the Metal device of a Mac: ``accelerator="mps"``."""

    name = "mps"

    def device(self) -> torch.device:
        return existing("mps", 0, "accelerator='mps'")
