"""Log memory usage."""

from __future__ import annotations

import resource
import sys
from typing import Any

import torch

from lightloop import Every, Loop, Plugin, hookimpl, option

MIB = 2**20


def _when(old: object) -> int | None:
    """The rhythm that an old ``log_gpu_memory`` of "all" or "min_max" stands for."""
    return 50 if old else None


class DeviceStats(Plugin):
    """Log the memory of the main rank's accelerator and of its process, in MiB.

    ``memory/allocated`` is what tensors take on the device now, ``memory/peak`` the most they have taken, and
    ``memory/reserved`` what torch holds for them; ``memory/host`` is what the process takes (its peak, where psutil is not
    installed). Asking does not wait for the device.
    """

    name = "device_stats"
    tags = ("watches",)
    before = ("log_every", "validation")
    state = ("_every",)
    transient = ("_seen",)

    when: int | float | str | Every | None = option(
        None,
        "Steps between two measurements, or any other rhythm; None is off. They go into the rows of log_every_n_steps.",
        flag="log_device_stats",
        aliases={"log_gpu_memory": _when},
        neutral=True,
    )

    def validate(self) -> None:
        self._every = Every(50 if self.when is None else self.when, "log_device_stats")
        self._seen = False

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._every.start(loop)
        self._seen = False

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if loop.stepped and (self._every.due(loop) or not self._seen):
            self._seen = True
            for name, size in {**device_memory(loop.device), "memory/host": host_memory()}.items():
                loop.log(name, size / MIB, reduce="last")


def device_memory(device: torch.device) -> dict[str, int]:
    """Bytes on ``device``; nothing for the CPU and for devices that do not count them."""
    backend: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(backend, "memory_allocated"):
        return {}
    return {
        "memory/allocated": backend.memory_allocated(device),
        "memory/peak": backend.max_memory_allocated(device),
        "memory/reserved": backend.memory_reserved(device),
    }


def host_memory() -> int:
    """Bytes of the process that are in memory now, or the most there have been where that cannot be asked."""
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return int(psutil.Process().memory_info().rss)
