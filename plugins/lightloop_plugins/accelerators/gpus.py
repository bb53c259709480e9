"""The deprecated option ``gpus``."""

from __future__ import annotations

from typing import Any

import torch

from lightloop import Loop, hookimpl, option
from lightloop.toolkit import warn
from lightloop_plugins.accelerators._device.place import Device, existing
from lightloop_plugins.accelerators._launcher.environment import DEVICES


class Gpus(Device):
    """``gpus=n`` is ``accelerator="gpu", devices=n``; it warns, and works.

    A list of indices must be that of the first ones: which GPUs are meant is said in the environment, by
    CUDA_VISIBLE_DEVICES.
    """

    name = "gpus"
    before = ("strategy",)
    transient = ("number",)

    count: Any = option(
        None, "Deprecated: number of GPUs, or the indices of the first ones; 0 is off.", flag="gpus", switch=True
    )

    def validate(self) -> None:
        super().validate()
        listed = self.count.split(",") if isinstance(self.count, str) and "," in self.count else self.count
        if isinstance(listed, (list, tuple)):
            if [str(index).strip() for index in listed] != [str(index) for index in range(len(listed))]:
                raise self.invalid("count", f"a number; say which ones by CUDA_VISIBLE_DEVICES, and gpus={len(listed)}")
            listed = len(listed)
        try:
            self.number = int(listed)
        except (TypeError, ValueError):
            raise self.invalid("count", "a whole number, or -1 for all") from None
        if self.number < -1:
            raise self.invalid("count", "a whole number from 0, or -1 for all")
        warn("'gpus' is now accelerator='gpu' and devices=n", DeprecationWarning)

    @hookimpl
    def setup(self, loop: Loop) -> None:
        loop.stash[DEVICES] = torch.accelerator.device_count() if self.number == -1 else self.number
        super().setup(loop)

    def device(self) -> torch.device:
        found = torch.accelerator.current_accelerator(check_available=True)
        return existing("gpu" if found is None else found.type, None, f"gpus={self.count!r}")
