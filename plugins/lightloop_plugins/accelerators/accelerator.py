"""Train on any device type that torch supports: the best available, or one without a plugin of its own."""

from __future__ import annotations

import torch

from lightloop import option
from lightloop_plugins.accelerators._device.place import Device, existing


class Accelerator(Device):
    """Find the device through :mod:`torch.accelerator`.

    ``accelerator="auto"`` takes this machine's accelerator, or the CPU where it has none; ``"gpu"`` takes its accelerator,
    whichever kind it is, or fails; any other type that torch knows (``"xpu"``, ``"hpu"``, one that an extension has
    registered), perhaps with an index (``"xpu:1"``), takes just that. The name of a device plugin, such as ``"cuda"``,
    chooses that plugin instead.
    """

    name = "accelerator"

    kind: str | None = option(
        None,
        "Where to train: 'auto', 'gpu', a device plugin, or a device type of torch; None is the CPU.",
        flag="accelerator",
    )
    index: int | None = option(
        None,
        "Index of the device; None uses LOCAL_RANK, else 0.",
        enables=False,
    )

    def validate(self) -> None:
        super().validate()
        self.kind = self.kind or "auto"
        if self.index is not None and self.index < 0:
            raise self.invalid("index", "a whole number from 0")
        if self.kind in ("auto", "gpu"):
            return
        try:
            device = torch.device(self.kind)
        except RuntimeError:
            raise self.invalid("kind", "'auto', 'gpu', a device plugin, or a device type that torch knows") from None
        if device.index is not None and self.index is not None:
            raise self.invalid("kind", f"without an index, which accelerator_index={self.index} gives already")

    def device(self) -> torch.device:
        assert self.kind is not None
        found = torch.accelerator.current_accelerator(check_available=True)
        said = f"accelerator={self.kind!r}"
        if self.kind == "auto":
            return existing("cpu" if found is None else found.type, self.index, said)
        if self.kind == "gpu":
            return existing("gpu" if found is None else found.type, self.index, said)
        device = torch.device(self.kind)
        return existing(device.type, self.index if device.index is None else device.index, said)
