"""Train on all XLA devices of this process, as one program that XLA divides among them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import warn
from lightloop_plugins.accelerators._launcher.environment import DEVICES, NODES
from lightloop_plugins.accelerators._xla import SPMD, engine


class XlaSpmd(Plugin):
    """Split each batch over the XLA devices of this process: ``accelerator="xla", strategy="xla_spmd"``.

    One process runs one program (SPMD); each batch is divided along its first dimension, and XLA puts in what the devices
    have to tell one another, the mean of the gradients among it. So batch size, steps, metrics and random numbers are
    those of one device. A batch whose size is no multiple of the number of devices is computed whole on each of them:
    the result is the same, the time is not saved, and it is said once.

    SPMD is a state of the process: it stays on, and the process can have no tensor on an XLA device before.
    """

    name = "xla_spmd"
    group = "strategy"
    after = ("accelerator", "devices")
    requires = ("xla",)
    tags = (SPMD,)
    transient = ("_mesh", "_said")

    shard_parameters: bool = option(
        False,
        "Keep of each parameter (and of what its optimizer remembers) only a part on each device, where its first "
        "dimension can be divided.",
        enables=False,
    )

    def validate(self) -> None:
        self._mesh: Any = None
        self._said = False

    @hookimpl
    def setup(self, loop: Loop) -> None:
        devices = engine("torch_xla.runtime").global_runtime_device_count()
        wanted = loop.stash.get(DEVICES, devices) * loop.stash.get(NODES, 1)
        if wanted != devices:
            raise ValueError(
                f"devices and num_nodes ask for {wanted} devices, and strategy='xla_spmd' takes all {devices} that XLA has "
                "here: leave devices out. On the CPU, CPU_NUM_DEVICES in the environment says how many there are"
            )
        self._said = False
        self._mesh = engine("torch_xla.distributed.spmd").Mesh(numpy.arange(devices), (devices,), ("data",))
        if not self.shard_parameters:
            loop.opt_out(self, "before_fit", "before_epoch")

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        for parameter in loop.module.parameters():
            self._divide(parameter)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        """Divide what a resumed run has loaded into its optimizers."""
        for optimizer in loop.optimizers:
            for parameter, state in optimizer.state.items():
                for value in state.values():
                    if isinstance(value, Tensor) and value.shape == parameter.shape:
                        self._divide(value)
        loop.opt_out(self, "before_epoch")

    @hookimpl(wrapper=True)
    def move_batch(self, loop: Loop) -> Generator[None, Any, Any]:
        batch = yield
        parts = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim]
        whole = [part for part in parts if not self._divide(part)]
        if whole and not self._said:
            self._said = True
            warn(
                f"xla_spmd: a batch of {len(whole[0])} cannot be divided among {self._mesh.size()} devices, and is computed "
                "whole on each: let the batch size be a multiple, and drop_last",
            )
        return batch

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._mesh = None

    def _divide(self, tensor: Tensor) -> bool:
        """Divide ``tensor`` along its first dimension among the devices, if that is possible."""
        if not tensor.ndim or len(tensor) % self._mesh.size():
            return False
        along = ("data", *(None,) * (tensor.ndim - 1))
        engine("torch_xla.distributed.spmd").mark_sharding(tensor, self._mesh, along)
        return True
