"""Train on a GPU of CUDA, or of ROCm, which torch calls by the same name."""

from __future__ import annotations

import torch

from lightloop import option
from lightloop_plugins.accelerators._device.place import Device, existing


class Cuda(Device):
    """Train on a CUDA device: ``accelerator="cuda"``."""

    name = "cuda"

    index: int | None = option(
        None,
        "Index of the device; None uses LOCAL_RANK, else 0.",
        enables=False,
    )

    def validate(self) -> None:
        super().validate()
        if self.index is not None and self.index < 0:
            raise self.invalid("index", "a whole number from 0")

    def device(self) -> torch.device:
        return existing("cuda", self.index, "accelerator='cuda'")
