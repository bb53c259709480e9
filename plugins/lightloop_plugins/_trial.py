"""Trial runs for the finders: a few training steps that leave no trace."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from lightloop import Loop, Plugin, Trainer, hookimpl
from lightloop.toolkit import context, keep_random

ASIDE = (
    *(
        "averages",
        "bounds",
        "guards",
        "interrupts",
        "logger",
        "logs",
        "saves",
        "schedules",
        "searches",
        "stops",
        "validates",
    ),
    *("watches", "writes"),
)
"""The roles that have no part in a trial: what bounds, watches, saves or tells of a run, or changes its learning rates."""


class Trial(Plugin):
    """Bounds a run by what :meth:`go_on` says after each window, and leaves out what is :data:`ASIDE`."""

    name = "trial"
    replaces: ClassVar[tuple[str, ...]] = ASIDE

    def go_on(self, loop: Loop) -> bool:
        """Whether another step is wanted."""
        raise NotImplementedError

    @hookimpl
    def epochs_remain(self, loop: Loop) -> bool:
        return True

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        if not self.go_on(loop):
            loop.stop("the trial is over")

    @hookimpl
    def on_step_skipped(self, loop: Loop) -> None:
        if not self.go_on(loop):
            loop.stop("the trial is over")


def run(trainer: Trainer, module: nn.Module, train: Any, trial: Trial) -> None:
    """Train ``module``, which is changed, as ``trainer`` would; the trainer, its plugins and random numbers are not.

    Raises:
        TypeError: if ``train`` can be read only once, so that it would be used up.
    """
    if isinstance(train, Iterator):  # asking iter() would draw a random number for a DataLoader
        raise TypeError(
            "the data of a trial is read again in training, which a generator cannot be: give a list or DataLoader"
        )
    kept = [copy.deepcopy(plugin) for plugin in _kept(trainer.plugins, set(trial.replaces))]
    put_back = keep_random()
    try:
        with generators_kept(train):
            Trainer(["-*", *kept, trial]).fit(module, train)
    finally:
        put_back()


def _kept(plugins: Sequence[Plugin], aside: set[str]) -> list[Plugin]:
    """``plugins`` without those ``aside``, and without those that need one of these."""
    kept = [plugin for plugin in plugins if not plugin.names() & aside]
    there = {name for plugin in kept for name in plugin.names()}
    lacking = {plugin.name for plugin in kept if not there.issuperset(plugin.requires)}
    return _kept(kept, lacking) if lacking else kept


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that there was no memory left, on whatever device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    words = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def free_memory() -> None:
    """Give back what a failed attempt held."""
    gc.collect()
    device = torch.accelerator.current_accelerator(check_available=True)
    empty_cache = getattr(torch.get_device_module(device), "empty_cache", None) if device is not None else None
    if empty_cache is not None:
        empty_cache()


@context
def generators_kept(loader: Iterable[Any] | None) -> Iterator[None]:
    """Put the generators by which a DataLoader shuffles back to where they were."""
    parts: list[Any] = [loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler"))]
    parts.append(getattr(parts[-1], "sampler", None))
    generators = [part.generator for part in parts if isinstance(getattr(part, "generator", None), torch.Generator)]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
