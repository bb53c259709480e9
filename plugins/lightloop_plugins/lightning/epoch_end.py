"""The end of an epoch in the order that code for Lightning expects."""

from __future__ import annotations

from typing import Any

from lightloop import Loop, Plugin, hookimpl
from lightloop_plugins.lightning import LOG
from lightloop_plugins.lightning.parts import is_imported


class LightningEpochEnd(Plugin):
    """Call ``on_train_epoch_end`` after validation, and compute the metric objects of the epoch.

    A part of the plugin ``lightning`` with a place of its own: elsewhere, callbacks hear of the end of an epoch before
    validation.
    """

    name = "lightning_epoch_end"
    requires = ("lightning",)
    after = ("lightning", "callbacks", "log_every", "validation")
    before = ("lr_schedule", "early_stopping", "checkpoint")
    transient = ("_callbacks",)

    @classmethod
    def is_default(cls) -> bool:
        """Where the program has imported Lightning."""
        return is_imported()

    def validate(self) -> None:
        self._callbacks: Any = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._callbacks = None
        if loop.stash.get(LOG) is None:
            loop.opt_out(self)
        elif (callbacks := loop.trainer.plugin("callbacks")) is not None:
            loop.opt_out(callbacks, "after_epoch")
            self._callbacks = callbacks

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        log = loop.stash[LOG]
        log.of_epoch = True
        log.compute()  # callbacks may monitor them
        if self._callbacks is not None:
            self._callbacks.after_epoch(loop)
        log.compute()  # and may have logged more
        log.reset()
        log.of_epoch = False
        if means := loop.fold_metrics():
            loop.write({"epoch": loop.epoch, **means})

    @hookimpl
    def after_evaluation_batches(self, loop: Loop) -> None:
        log = loop.stash[LOG]
        log.compute()
        log.reset()

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._callbacks = None
