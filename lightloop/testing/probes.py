"""What the contract looks with: plugins that watch a run, and comparisons of what they saw."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightloop import Loop, Plugin, hookimpl
from lightloop.host.plugin_state import undeclared

DISTURBS = ("parameters", "gradients", "random", "modes")
"""What :class:`Watch` compares. A plugin may declare ``"waiting"`` beside: it reads values of the device in each batch."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


class PlannedError(Exception):
    """The error of :class:`Fail`."""


class Watch(Plugin):
    """Keeps what a plugin beside it could disturb."""

    name = "watch"

    def validate(self) -> None:
        self.gradients: list[Any] = []
        self.modes: list[bool] = []

    @hookimpl(wrapper=True, tryfirst=True)
    def forward(self, loop: Loop) -> Generator[None, Any, Any]:
        self.modes.append(all(part.training for part in loop.module.modules()))
        return (yield)

    @hookimpl(wrapper=True)
    def step(self, loop: Loop) -> Generator[None, Any, Any]:
        self.gradients.append([gradient.detach().clone() for gradient in loop.find_gradients()])
        return (yield)

    def seen(self, module: nn.Module, random_before: Any) -> dict[str, Any]:
        """What came out of the run, for comparison with another's."""
        return {
            "parameters": [parameter.detach().clone() for parameter in module.parameters()],
            "gradients": [*self.gradients, [parameter.grad is None for parameter in module.parameters()]],
            "random": same(random_before, random_state()),
            "modes": [sorted(set(self.modes)), [part.training for part in module.modules()]],
        }


class Books(Plugin):
    """Counts what happens in a run, and looks whether the graph of its first loss is kept alive."""

    name = "books"
    tags = ("interrupts",)  # so that the trials of a finder go on
    transient = ("batches", "steps", "skipped", "epochs", "wrong", "first", "keeps_graphs")

    def reset(self) -> None:
        self.batches = self.steps = self.skipped = self.epochs = 0
        self.wrong: list[str] = []
        self.first: weakref.ref[Tensor] | None = None
        self.keeps_graphs = False

    @hookimpl(tryfirst=True)
    def after_forward(self, loop: Loop) -> None:
        if self.first is None and loop.loss is not None and loop.loss.grad_fn is not None:
            self.first = weakref.ref(loop.loss)

    @hookimpl(tryfirst=True)
    def after_batch(self) -> None:
        self.batches += 1

    @hookimpl(tryfirst=True)
    def after_step(self) -> None:
        self.steps += 1

    @hookimpl(tryfirst=True)
    def on_step_skipped(self) -> None:
        self.skipped += 1

    @hookimpl(tryfirst=True)
    def after_epoch(self, loop: Loop) -> None:
        self.epochs += loop.epoch_finished
        if self.first is not None and self.first() is not None:  # else there is nothing that a collection could free
            gc.collect()
        loss = self.first() if self.first is not None else None
        self.keeps_graphs |= loss is not None and loss is not loop.loss and loop.total_batches > 1

    def differences(self, loop: Loop) -> list[str]:
        """The counters of ``loop`` that say something other than what has happened."""
        counted = {"total_batches": self.batches, "skipped_steps": self.skipped, "epoch": self.epochs}
        if len(loop.optimizers) == 1:
            counted |= {"global_step": self.steps, "optimizer_steps": [self.steps]}  # type: ignore[dict-item]
        return [
            f"loop.{name} is {getattr(loop, name)}, and {count} were counted"
            for name, count in counted.items()
            if getattr(loop, name) != count
        ]


class Fail(Plugin):
    """Raises :class:`PlannedError` in the last batch."""

    name = "fail"

    @hookimpl(wrapper=True, tryfirst=True)
    def forward(self, loop: Loop) -> Generator[None, Any, Any]:
        output = yield
        if loop.is_last_batch:
            raise PlannedError("as planned")
        return output


class StopAfterEpoch(Plugin):
    """Stops after the first epoch, or lets the run go on."""

    name = "stop_after_epoch"
    tags = ("interrupts",)  # so that the trials of a finder go on

    def __init__(self, stops: bool) -> None:
        super().__init__()
        self.stops = stops

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        if self.stops:
            loop.interrupt("half of it is done")


class Restore(Plugin):
    """Gives another plugin a state when a fit has begun, and keeps the state that it then has."""

    name = "restore"
    tags = ("interrupts",)

    def __init__(self, plugin: Plugin, state: Mapping[str, Any]) -> None:
        super().__init__()
        self.plugin = plugin
        self.given = state
        self.seen: Mapping[str, Any] | None = None

    @hookimpl(wrapper=True, tryfirst=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        yield
        if any(plugin is self.plugin for plugin in loop.plugins):
            self.plugin.load_state_dict(self.given)
            self.seen = self.plugin.state_dict()
        loop.interrupt("its state has been seen")


class Attributes(Plugin):
    """Keeps the names of another plugin's attributes that are not declared, as they are between two batches."""

    name = "attributes"

    def __init__(self, plugin: Plugin) -> None:
        super().__init__()
        self.plugin = plugin
        self.seen: set[str] = set()

    @hookimpl(wrapper=True, tryfirst=True)
    def after_batch(self, loop: Loop) -> Generator[None, None, None]:
        yield
        self.seen.update(undeclared(self.plugin))


def random_state() -> list[Any]:
    """Where the random numbers are."""
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]  # type: ignore[index]


def not_plain(value: Any, place: str = "state") -> str | None:
    """Where in ``value`` there is something other than plain containers, numbers, strings and tensors."""
    if value is None or type(value) in (bool, int, float, str, bytes) or isinstance(value, Tensor):
        return None
    if type(value) in (list, tuple):
        parts = [(f"{place}[{index}]", part) for index, part in enumerate(value)]
    elif isinstance(value, dict):
        parts = [(f"{place}[{key!r}]", part) for key, part in value.items()]
    else:
        return f"{place} is {type(value).__name__}"
    return next((problem for where, part in parts if (problem := not_plain(part, where)) is not None), None)


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal to the bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def surroundings(module: nn.Module) -> dict[str, Any]:
    """What a run must leave as it was: handlers, threads, hooks, files and torch's settings."""
    return {
        "signal handlers": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)},
        "threads": _threads(),
        "hooks of the module": sum(len(getattr(part, kind)) for part in module.modules() for kind in HOOKS),
        "hooks of parameters": sum(len(parameter._backward_hooks or ()) for parameter in module.parameters()),
        "modes": [part.training for part in module.modules()],
        "open files": _files(),
        "settings of torch": (
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_enabled("cpu"),
        ),
        "standard streams": (id(sys.stdout), id(sys.stderr)),
        "hooks of Python": (sys.excepthook, threading.excepthook, sys.getprofile(), sys.gettrace()),
    }


def _threads() -> list[str]:
    """The threads that do not end within a moment."""
    known = threading.main_thread()
    until = time.monotonic() + 0.5
    while (
        len(alive := [thread for thread in threading.enumerate() if thread is not known]) and time.monotonic() < until
    ):
        if all(thread.name.startswith(("pydevd", "execnet", "Dummy")) for thread in alive):
            break
        time.sleep(0.01)
    return sorted(thread.name for thread in alive)


def _files() -> list[str]:
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        return []
    named = []
    for number in os.listdir(folder):
        try:
            named.append(os.readlink(f"{folder}/{number}"))
        except OSError:  # that of the listing itself
            continue
    return sorted(name for name in named if name.startswith("/") and not name.startswith(("/proc/", "/dev/")))
