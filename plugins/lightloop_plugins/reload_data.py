"""Reload the training and validation loaders every n epochs."""

from __future__ import annotations

import math
from collections.abc import Generator

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import eval_loaders


class ReloadData(Plugin):
    """Ask the sources of the training and validation data for new loaders before every n-th epoch, each once.

    A source that is a method of the module makes new ones; a loader that was handed to ``fit`` is the same again.
    """

    name = "reload_data"
    before = ("accumulate", "set_epoch", "checkpoint")
    state = ("loaded_at",)

    epochs: int | bool = option(
        0,
        "Number of epochs between two reloads of the loaders; True reloads every epoch, 0 and False never.",
        flag="reload_dataloaders_every_n_epochs",
        aliases=("reload_dataloaders_every_epoch",),
    )

    def validate(self) -> None:
        if self.epochs < 1:
            raise self.invalid("epochs", "a whole number of epochs from 1")
        self.loaded_at = 0

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        self.loaded_at = 0
        yield  # a resumed run now knows in which epoch its loaders were made
        if loop.epoch and loop.epoch - self.loaded_at < self.epochs:
            epoch, loop.epoch = loop.epoch, self.loaded_at  # the sources may look at it
            try:
                if self.loaded_at:  # of epoch 0, that for training is there already
                    loop.reload_train_data()
                if loop.eval_loaders.pop("validate", None) is not None:
                    eval_loaders(loop, "validate")
            finally:
                loop.epoch = epoch

    @hookimpl(wrapper=True)
    def epoch_batches(self, loop: Loop, epoch: int) -> Generator[None, float | None, float | None]:
        batches = yield
        if batches != loop.num_batches or epoch - self.loaded_at < self.epochs:
            return batches  # another plugin knows it, or it is that of the loader which is there
        return math.inf  # the next loader may have another length

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        if loop.epoch - self.loaded_at >= self.epochs:
            self.loaded_at = loop.epoch
            loop.reload_train_data()
            loop.eval_loaders.pop("validate", None)
