"""Run modules, callbacks and data modules that were written for Lightning, as they are."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from typing import Any

import torch

from lightloop import Key, Loop, Plugin, hookimpl
from lightloop_plugins.lightning.data import find_datamodule
from lightloop_plugins.lightning.log import Log
from lightloop_plugins.lightning.parts import (
    CALLBACK_METHODS,
    MODULE_METHODS,
    TRANSFERS,
    check_callbacks,
    check_module,
    hide,
    instances,
    is_imported,
    overrides,
    show,
)
from lightloop_plugins.lightning.trainer import View

LOG: Key[Log] = Key("lightning.log")
"""Where what the module logs goes; there while something of Lightning's is run."""
EVALUATION = ("loop.evaluation.batch_idx", "loop.evaluation.loader_idx")
STEPS: dict[str, tuple[str, ...]] = {"training_step": ("loop.batch_idx",)}
STEPS |= dict.fromkeys(("validation_step", "test_step", "predict_step"), EVALUATION)
"""What a step has after the batch, by position and whatever the user calls it; in Lightning over a default too."""


class Lightning(Plugin):
    """Run an unmodified LightningModule, and callbacks of Lightning.

    It is there by itself in a program that has imported Lightning, and bows out of runs that have neither of them. While a run lasts, ``self.trainer`` is the Trainer with the attributes that Lightning's has, and what a module
    inherits from Lightning without overriding it is left to the loop. What cannot be carried is refused by name when the
    run begins.
    """

    name = "lightning"
    before = ("accelerator", "strategy", "callbacks", "module_hooks", "old_names", "validation")
    transient = ("_hidden", "_trainer", "_data", "_backward")

    @classmethod
    def is_default(cls) -> bool:
        """Where the program has imported Lightning."""
        return is_imported()

    def reset(self) -> None:
        self._hidden: list[tuple[Any, dict[str, Any]]] = []
        self._trainer: Any = None
        self._data: Any = None
        self._backward: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        modules = instances(loop.module.modules(), "LightningModule")
        given = getattr(loop.trainer, "callbacks", None)
        callbacks = instances(given if isinstance(given, (list, tuple)) else [given], "Callback")
        if not modules and not callbacks:
            loop.opt_out(self)
            return
        check_callbacks(callbacks)
        self._data = find_datamodule(loop)
        log = loop.stash[LOG] = Log(loop)
        self._trainer, loop.trainer = loop.trainer, View(loop, self._data, callbacks, self, log)
        for module in modules:
            check_module(module)
            instead = {"log": log, "_trainer": loop.trainer}
            self._hidden.append((module, hide(module, "LightningModule", MODULE_METHODS, instead)))
        self._hidden += [(callback, hide(callback, "Callback", CALLBACK_METHODS)) for callback in callbacks]
        if loop.module in modules:
            self._ready(loop, loop.module)
        else:
            loop.opt_out(self, "before_fit", "move_batch", "backward")

    def _ready(self, loop: Loop, module: Any) -> None:
        if overrides(module, "configure_model"):
            module.configure_model()
        for step, expressions in STEPS.items():
            arguments = loop.step_arguments if step == "training_step" else loop.evaluation_arguments
            parameters = list(inspect.signature(getattr(type(module), step)).parameters.values())[2:]
            for parameter, path in zip(parameters, expressions, strict=False):
                if parameter.default is not parameter.empty:
                    arguments.setdefault(parameter.name, path)
        if not any(overrides(part, name) for part in (module, self._data) if part for name in TRANSFERS):
            loop.opt_out(self, "move_batch")
        if module.automatic_optimization:
            loop.opt_out(self, "before_fit", "backward")

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        for schedule in loop.schedules:  # with automatic_optimization = False, training_step steps them
            schedule.paused = True

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        loop.stash[LOG].of_epoch = True

    @hookimpl(wrapper=True)
    def read_batches(self, loop: Loop) -> Generator[None, Any, Any]:
        loop.stash[LOG].of_epoch = False
        return (yield)

    @hookimpl
    def move_batch(self, loop: Loop, batch: Any) -> Any:
        where = 0 if loop.evaluation is None else loop.evaluation.loader_idx
        for name in TRANSFERS:
            owner = self._data if self._data and overrides(self._data, name) else loop.module
            device = (loop.device,) if name == "transfer_batch_to_device" else ()
            batch = getattr(type(owner), name)(owner, batch, *device, where)  # of the class: the object's may be hidden
        return batch

    @hookimpl
    def backward(self, loop: Loop) -> bool | None:
        if self._backward is None:
            return None
        arguments, named = self._backward
        assert loop.loss is not None
        torch.autograd.backward(loop.loss, *arguments, **named)
        return True

    def manual_backward(self, loop: Loop, loss: Any, *arguments: Any, **named: Any) -> None:
        """What ``self.manual_backward`` does: gradients add up as they are, scaled where precision asks for it."""
        loop.loss, loop.weight, loop.share = loss, None, None
        self._backward = (arguments, named) if arguments or named else None
        loop.hook.before_backward(loop=loop)
        try:
            loop.hook.backward(loop=loop)
        finally:
            self._backward = None
        loop.hook.after_backward(loop=loop)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        for thing, names in self._hidden:
            show(thing, names)
        if self._trainer is not None:
            loop.trainer = self._trainer
        self.reset()
