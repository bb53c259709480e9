"""Accept ``strategy="dp"`` (``nn.DataParallel``) on one device; several devices are rejected."""

from __future__ import annotations

from lightloop import Loop, Plugin, hookimpl
from lightloop_plugins.accelerators._launcher.environment import DEVICES, environment


class Dp(Plugin):
    """``strategy="dp"`` with one device, where ``nn.DataParallel`` calls the module and nothing else.

    With several, ``nn.DataParallel`` copies the module to each device for each forward and runs the copies in threads of one
    process: what a training step logs or keeps in the module would be lost with the copies. This is refused;
    ``strategy="ddp"`` has a process for each device and none of these limits.
    """

    name = "dp"
    group = "strategy"
    after = ("accelerator", "devices")

    @hookimpl
    def setup(self, loop: Loop) -> None:
        place = environment()
        devices = loop.stash.get(DEVICES, 1)
        if devices > 1 or (place is not None and place.size > 1):
            count = f"{devices} devices" if devices > 1 else "several processes"
            raise ValueError(
                f"strategy='dp' runs one process on one device, and there are {count}: use strategy='ddp', which has a process "
                "for each device"
            )
        loop.opt_out(self)
