"""What the strategies of several processes share: meeting, and parting."""

from __future__ import annotations

import zlib
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn

from lightloop import Loop, Plugin, World, hookimpl, option
from lightloop.toolkit import refuse_closures, searches_line
from lightloop_plugins.accelerators._horovod import launched
from lightloop_plugins.accelerators._launcher import launch
from lightloop_plugins.accelerators._launcher.environment import DEVICES, NODES, ProcessWorld, environment
from lightloop_plugins.accelerators._launcher.meeting import join


class Processes(Plugin):
    """One process for each device, all training one module; ``loop.world`` is theirs while the run lasts."""

    group = "strategy"
    after = ("accelerator", "devices")
    transient: ClassVar[tuple[str, ...]] = ("_failed",)

    backend: str | None = option(
        None,
        "Backend of torch.distributed for tensors; None is gloo on the CPU, and the one made for the device elsewhere.",
        enables=False,
    )
    timeout: float = option(
        1800.0, "Seconds that a process waits for the others before it raises an error.", enables=False
    )

    def validate(self) -> None:
        if not self.timeout > 0:
            raise self.invalid("timeout", "a number of seconds above 0")
        self._failed = False

    def meet(self, loop: Loop) -> bool:
        """Become one of the processes of this launch, or start the others where there is no launcher.

        Returns:
            Whether there are others; if not, there is nothing to do.
        """
        self._failed = False
        devices, nodes = loop.stash.get(DEVICES, 1), loop.stash.get(NODES, 1)
        launch.watch_parent()
        if environment() is None and not dist.is_initialized() and launched():
            raise RuntimeError(
                f"horovodrun has started this process, and strategy={self.name!r} knows nothing of the others: give "
                "strategy='horovod', or start the script with torchrun"
            )
        if environment() is None and not dist.is_initialized() and devices * nodes > 1:
            if nodes > 1:
                raise ValueError(
                    f"num_nodes={nodes} needs a launcher on each machine, such as torchrun --nnodes {nodes} or srun"
                )
            self._engine(loop.device)  # for what it refuses
            launch.start(devices)
        place = environment()
        size = dist.get_world_size() if dist.is_initialized() else 1 if place is None else place.size
        same_count(loop, size, place.launcher if place else "torch.distributed")
        if size == 1:
            return False
        loop.world = join(self._engine(loop.device), timedelta(seconds=self.timeout), launch.check_children)
        same_module(loop.module, loop.world)
        same_weights(loop.module)
        return True

    def _engine(self, device: torch.device) -> str:
        if self.backend is not None or device.type == "cpu":
            return self.backend or "gloo"
        engine = dist.Backend.default_device_backend_map.get(device.type)
        if engine is None:
            raise self.invalid(
                "backend",
                f"given: torch.distributed knows none for {device.type!r}, which may have a strategy of its own",
            )
        return f"cpu:gloo,{device.type}:{engine}"

    @hookimpl
    def on_error(self, loop: Loop, error: BaseException) -> None:
        self._failed = True
        if isinstance(loop.world, ProcessWorld):
            loop.world.fail(error, loop.where())

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if isinstance(loop.world, ProcessWorld):
            loop.world.close(self._failed)
            if self._failed:
                loop.world.wait_until_known()
        if launch.started():
            launch.finish(self._failed)


def no_line_search(loop: Loop, strategy: Plugin) -> None:
    """Refuse optimizers that evaluate as often as the loss says."""
    why = "which decides by the loss how often it goes forward, and waits for ranks that decide otherwise: use one process"
    refuse_closures(loop, f"strategy={strategy.name!r}", why, searches_line)


def same_count(loop: Loop, size: int, launcher: str) -> None:
    """Refuse a number of processes that is not what somebody asked for."""
    devices, nodes = loop.stash.get(DEVICES, 1), loop.stash.get(NODES, 1)
    if DEVICES in loop.stash and devices * nodes != size:
        raise ValueError(
            f"devices={devices} and num_nodes={nodes} ask for {devices * nodes} processes, and {launcher} has started {size}"
        )


def same_module(module: nn.Module, world: World) -> None:
    """Refuse modules that differ from rank to rank in the names, shapes or types of what is in them."""
    state = [(name, tuple(each.shape), str(each.dtype)) for name, each in module.named_parameters()]
    state += [(name, tuple(each.shape), str(each.dtype)) for name, each in module.named_buffers()]
    seen = world.gather(zlib.crc32(repr(state).encode()))
    if len(set(seen)) > 1:
        every = world.gather(state)
        odd = next(rank for rank, each in enumerate(seen) if each != seen[0])
        pairs = zip([*every[0], None], [*every[odd], None], strict=False)
        first, other = next((a, b) for a, b in pairs if a != b)
        raise ValueError(
            f"the module is another one on rank {odd} than on rank 0: it has {other or 'nothing'} where that has "
            f"{first or 'nothing'}"
        )


@torch.no_grad()
def same_weights(module: nn.Module) -> None:
    """Give each rank the parameters and buffers of rank 0."""
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.detach().contiguous()
        dist.broadcast(whole, 0)
        tensor.detach().copy_(whole)
