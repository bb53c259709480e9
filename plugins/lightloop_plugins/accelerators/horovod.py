"""Train in processes that horovodrun has started."""

from __future__ import annotations

from collections.abc import Generator
from types import ModuleType
from typing import Literal

from lightloop import Loop, Plugin, Setup, hookimpl, option
from lightloop.toolkit import add_note
from lightloop_plugins.accelerators._horovod import (
    HorovodWorld,
    average_gradients,
    engine,
    launched,
    share_state,
    share_weights,
)
from lightloop_plugins.accelerators._launcher.processes import no_line_search, same_count, same_module

RATES = ("lr", "initial_lr", "max_lr", "min_lr")
"""What learning rates are called in a parameter group, by optimizers and by schedules."""


class Horovod(Plugin):
    """Average gradients over all processes with Horovod: ``strategy="horovod"``.

    The processes are those of ``horovodrun`` or ``horovod.run``, in which this is the default; without either it is one
    process, as always. Rank 0's
    parameters and buffers are everybody's from the beginning, and so is, when the first epoch begins, what its optimizers,
    schedules and plugins have to remember.

    Gradients are averaged together when a window closes, and not by Horovod's own optimizer wrapper, which counts backward
    passes: a window may then be of any length, its held batches send nothing, and what follows (unscaling, measuring,
    clipping) sees the gradients of all ranks. What it costs is that sending does not overlap with backward.

    Under ``hvd.elastic.run``, a function that fits with ``resume="auto"`` goes on from the newest checkpoint with the
    processes that are left when one is lost.

    Buffers that training changes, such as those of BatchNorm, are each rank's own; rank 0's are saved.
    """

    name = "horovod"
    group = "strategy"
    after = ("accelerator", "devices")
    transient = ("_hvd", "reductions")

    compression: Literal["none", "fp16"] = option(
        "none", "Compression of the gradients that are sent: none, or float16, which halves their size.", enables=False
    )
    scale_lr: bool = option(
        False,
        "Multiply each learning rate, and what its schedule goes by, with the number of processes.",
        enables=False,
    )

    @classmethod
    def is_default(cls) -> bool:
        return launched()

    def validate(self) -> None:
        self._hvd: ModuleType | None = None
        self.reductions = 0
        """How often gradients have been averaged."""

    @hookimpl
    def setup(self, loop: Loop) -> None:
        hvd = engine()
        hvd.init()
        self.reductions = 0
        same_count(loop, hvd.size(), "horovodrun" if launched() else "nobody")
        if hvd.size() == 1:
            loop.opt_out(self)
            return
        self._hvd = hvd
        loop.world = HorovodWorld(hvd)
        same_module(loop.module, loop.world)
        share_weights(loop.module, hvd)

    @hookimpl(wrapper=True)
    def configure_optimizers(self, loop: Loop) -> Generator[None, Setup, Setup]:
        setup = yield
        if self.scale_lr:
            scale_rates(setup, loop.world.size)
        return setup

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        no_line_search(loop, self)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        assert self._hvd is not None
        share_weights(loop.module, self._hvd)
        share_state(loop)
        loop.opt_out(self, "before_epoch")

    @hookimpl
    def reduce_gradients(self, loop: Loop) -> None:
        assert self._hvd is not None
        average_gradients(loop, self._hvd, getattr(self._hvd.Compression, self.compression))
        self.reductions += 1

    @hookimpl
    def on_error(self, loop: Loop, error: BaseException) -> None:
        if not isinstance(loop.world, HorovodWorld):
            return
        if not loop.world.fail(error, loop.where()):
            add_note(
                error, "another rank has failed or is gone; if it was not killed, its own error is in what it wrote"
            )

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._hvd = None


def scale_rates(setup: Setup, factor: int) -> None:
    """Multiply the learning rates of optimizers, and those that their schedules have noted, by ``factor``."""
    for optimizer in setup.optimizers:
        for group in optimizer.param_groups:
            group.update({name: group[name] * factor for name in RATES if name in group})
    for schedule in setup.schedules:
        for name in ("base_lrs", "_last_lr"):
            if rates := getattr(schedule.scheduler, name, None):
                setattr(schedule.scheduler, name, [rate * factor for rate in rates])
