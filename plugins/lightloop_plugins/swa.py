"""Stochastic weight averaging: average the weights at the ends of the last epochs."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import SWALR

from lightloop import Loop, Plugin, Schedule, hookimpl, option
from lightloop.toolkit import keep_random, warn
from lightloop_plugins._trial import generators_kept


class SWA(Plugin):
    """Average the weights at the end of each epoch from a given one on (Izmailov et al. 2018); keep the mean.

    With a learning rate ``lr`` the schedules of the module stand still from then on, and the rates go to ``lr`` within
    ``anneal_epochs`` epochs and stay there, as :class:`torch.optim.swa_utils.SWALR` has them.

    When training has ended, otherwise than by an error or an interrupt, the mean is put into the module, and the running
    statistics of its batch normalization are computed anew for it, by one pass of the training step over the training
    data without gradients, as :func:`torch.optim.swa_utils.update_bn` does. The last checkpoint has the module so, and what
    was trained beside it: a run that is resumed from it trains on with that.

    Attributes:
        average: the mean of each parameter by name; empty before the first.
        averaged: how many epochs are in it.
    """

    name = "swa"
    tags = ("averages",)
    after = ("lr_schedule",)
    before = ("checkpoint",)
    state = ("average", "averaged", "_schedulers", "_trained")
    transient = ("_loaded", "_first", "_schedules")

    start: int | float | None = option(
        None, "Epoch from which weights are averaged, counted from 0; or a fraction of the training (0.75)."
    )
    lr: float | None = option(None, "Target learning rate while averaging; None leaves it unchanged.", enables=False)
    anneal_epochs: int = option(
        10, "Number of epochs over which the rate is annealed to the target; 0 is at once.", enables=False
    )
    anneal: Literal["cos", "linear"] = option("cos", "How the rate is annealed: 'cos' or 'linear'.", enables=False)
    update_bn: bool = option(True, "Recompute the statistics of batch normalization at the end.", enables=False)

    def validate(self) -> None:
        fraction = isinstance(self.start, float)
        if self.start is None or not (0 <= self.start < 1 if fraction else self.start >= 0):
            raise self.invalid("start", "an epoch from 0, or a fraction of the training from 0.0 to below 1.0")
        if self.lr is not None and self.lr < 0:
            raise self.invalid("lr", "a learning rate from 0")
        if self.anneal_epochs < 0:
            raise self.invalid("anneal_epochs", "a whole number from 0")
        self.average: dict[str, Tensor] = {}
        self.averaged = 0
        self._loaded: Mapping[str, Any] | None = None
        self._schedulers: list[SWALR] = []
        self._first = 0
        self._schedules: list[Schedule] = []
        self._trained: dict[str, Tensor] = {}
        """Parameters and statistics as training left them, while the module has the averaged ones."""

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if self._loaded is None:
            self.average, self.averaged = {}, 0
        self._schedulers, self._trained = [], {}
        self._first, self._schedules = self._first_epoch(loop), loop.schedules

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        self._train_on(loop)
        if self.lr is None or self._schedulers or loop.epoch < self._first:
            return
        self._pause()
        self._schedulers = [
            SWALR(optimizer, self.lr, anneal_epochs=self.anneal_epochs, anneal_strategy=self.anneal)
            for optimizer in loop.optimizers
        ]
        for scheduler, state in zip(self._schedulers, (self._loaded or {}).get("schedulers", ()), strict=False):
            scheduler.load_state_dict(state)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        if not loop.epoch_finished or loop.epoch < self._first:
            return
        self._add(dict(loop.module.named_parameters()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about an epoch in which every step was skipped
            for scheduler in self._schedulers:
                scheduler.step()

    @hookimpl(wrapper=True)
    def between_batches(self, loop: Loop) -> Generator[None, None, None]:
        """Where training ends, let what is saved be the mean; the loop may still have a window to close."""
        ended = loop.batch_idx == 0 and not loop.stopping and not loop.hook.epochs_remain(loop=loop)
        if self.averaged and not loop.interrupt_reason and (loop.stopping or ended):
            self._put_average(loop)
        try:
            yield
        finally:
            if loop.batch_idx:
                self._train_on(loop)

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if loop.status not in ("finished", "stopped"):
            return
        if not self.averaged:
            warn(f"swa_start={self.start}: training ended before an epoch from there on did")
            return
        self._put_average(loop)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._schedulers, self._loaded, self._trained, self._schedules = [], None, {}, []

    def state_dict(self) -> dict[str, Any]:
        schedulers = [scheduler.state_dict() for scheduler in self._schedulers]
        return {
            "average": self.average,
            "averaged": self.averaged,
            "schedulers": schedulers,
            "trained": self._trained,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.average, self.averaged = dict(state["average"]), state["averaged"]
        self._trained = dict(state.get("trained", {}))
        self._loaded = state
        if state["schedulers"]:
            self._pause()

    def _pause(self) -> None:
        """Let no other schedule set the rates."""
        for schedule in self._schedules:
            schedule.paused = True

    @torch.no_grad()
    def _put_average(self, loop: Loop) -> None:
        """Let the module have the mean, with statistics of its own, and keep what was trained."""
        if self._trained:
            return
        parameters = dict(loop.module.named_parameters())
        kept = {**parameters, **dict(loop.module.named_buffers())}
        self._trained = {name: tensor.detach().clone() for name, tensor in kept.items()}
        for name, parameter in parameters.items():
            parameter.copy_(self.average[name])
        if self.update_bn:
            measure_again(loop)

    @torch.no_grad()
    def _train_on(self, loop: Loop) -> None:
        """Let the module have what was trained again."""
        trained, self._trained = self._trained, {}
        if trained:
            for name, tensor in (*loop.module.named_parameters(), *loop.module.named_buffers()):
                tensor.copy_(trained[name])

    def _first_epoch(self, loop: Loop) -> int:
        if isinstance(self.start, int):
            return self.start
        assert self.start is not None
        total = loop.total_steps
        if total is None:
            raise ValueError(
                f"swa_start={self.start} is a fraction of the training, whose length is not known here: bound it by "
                "max_epochs or max_steps over a loader that knows its length, or name an epoch"
            )
        epoch, steps = 0, 0.0
        while steps < self.start * total:
            steps += loop.hook.epoch_steps(loop=loop, epoch=epoch) or total
            epoch += 1
        return epoch

    @torch.no_grad()
    def _add(self, weights: Mapping[str, Tensor]) -> None:
        """Take ``weights`` into the mean, in the arithmetic of torch's AveragedModel."""
        if not self.average:
            self.average = {name: weight.detach().clone() for name, weight in weights.items()}
        for name, weight in weights.items():
            average = self.average[name] = self.average[name].to(weight.device)
            if self.averaged:
                average.add_((weight - average) / (self.averaged + 1))
        self.averaged += 1


KEPT = ("batch_idx", "batch", "piece", "output")
"""What of the loop a pass over the data changes."""


def measure_again(loop: Loop) -> None:
    """Recompute the running statistics of batch normalization layers in train mode over the training data."""
    norms = [part for part in loop.module.modules() if isinstance(part, _BatchNorm) and part.training]
    if norms:
        kept = {name: getattr(loop, name) for name in KEPT}
        with generators_kept(loop.train_loader):
            _measure(loop, norms)
        vars(loop).update(kept)


def _measure(loop: Loop, norms: list[_BatchNorm]) -> None:
    momenta = [part.momentum for part in norms]
    put_back = keep_random()
    loop.replaying = True  # so that nothing is logged
    begun = False
    try:
        for loop.batch_idx, loop.batch in enumerate(loop.train_loader):
            if not begun:
                begun = True
                for part in norms:
                    part.reset_running_stats()
                    part.momentum = None  # the mean over all batches
            loop.piece = loop.hook.move_batch(loop=loop, batch=loop.batch)
            with torch.no_grad():
                loop.hook.forward(loop=loop)
    finally:
        loop.replaying = False
        put_back()
        for part, momentum in zip(norms, momenta, strict=True):
            part.momentum = momentum
    if not begun:
        warn(
            "the training data cannot be read a second time, so the statistics of batch normalization are not those of "
            "the averaged weights: train on a list or a DataLoader",
        )
