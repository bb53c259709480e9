"""Attributes of the Trainer that describe its latest run, under the usual names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from lightloop.inputs.optimizers import Schedule
from lightloop.loop import Loop
from lightloop.metrics import fetch
from lightloop.state import HookRelay, Stage

SET = "trainer.should_stop was set"


def idle_loop(stage: Stage = "fit") -> Loop:
    """Return a loop in its initial state, with no module or data."""
    idle = Loop(cast(nn.Module, None), cast(HookRelay, None), (), stage)
    idle.status = "finished"
    return idle


class RunAttributes:
    """The state of the latest run; before the first run, initial values."""

    loop: Loop | None

    @property
    def _latest(self) -> Loop:
        return self.loop or idle_loop()

    # ----------------------------------------------------------------------------------------------- how far it is

    @property
    def global_step(self) -> int:
        """The number of applied optimizer steps; optimizers that step together count once."""
        return self._latest.global_step

    @property
    def current_epoch(self) -> int:
        """The epoch that is being trained, from 0; after a fit, how many are finished."""
        return self._latest.epoch

    @property
    def batch_idx(self) -> int:
        """The batch within the epoch, from 0."""
        return self._latest.batch_idx

    @property
    def total_batch_idx(self) -> int:
        """How many training batches are done in all epochs."""
        return self._latest.total_batches

    @property
    def is_last_batch(self) -> bool:
        """Whether the training batch is known to be the last of its epoch, after limits; without a length it is not."""
        return self._latest.is_last_batch

    @property
    def num_training_batches(self) -> int | float:
        """How many batches a training epoch has, after limits; infinity where the loader cannot tell."""
        size = self._latest.num_batches
        return math.inf if size is None else size

    @property
    def estimated_stepping_batches(self) -> int | float:
        """How many optimizer steps the whole run will make, as far as that is known; else infinity."""
        steps = self.loop.total_steps if self.loop else 0
        return math.inf if steps is None else steps

    # --------------------------------------------------------------------------------------------- what it works on

    @property
    def model(self) -> nn.Module | None:
        """The module that is trained or evaluated."""
        return self._latest.module

    @property
    def train_dataloader(self) -> Iterable[Any] | None:
        """The loader that is trained on, as the plugins prepared it."""
        return self.loop.train_loader if self.loop else None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers, in the order in which the user gave them."""
        return self._latest.optimizers

    @property
    def optimizer_frequencies(self) -> list[int]:
        """For how many windows in turn each optimizer steps; empty where all step in each."""
        return self._latest.frequencies

    @property
    def lr_scheduler_configs(self) -> list[Schedule]:
        """The learning-rate schedulers and when they are stepped."""
        return self._latest.schedules

    @property
    def lr_schedulers(self) -> list[dict[str, Any]]:
        """The same as mappings: ``trainer.lr_schedulers[0]["scheduler"]``."""
        return [vars(schedule) for schedule in self.lr_scheduler_configs]

    @property
    def loss(self) -> Tensor | None:
        """The loss of the latest piece that went forward, detached, where it is."""
        loss = self._latest.loss
        return None if loss is None else loss.detach()

    # ----------------------------------------------------------------------------------------------------- metrics

    @property
    def callback_metrics(self) -> dict[str, float]:
        """The latest value of every metric of the latest run, as numbers; those of an epoch are means so far."""
        return fetch(self._latest.metrics.now())

    @property
    def logged_metrics(self) -> dict[str, float]:
        """The same: whatever is logged is for the loggers too."""
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The latest value of the metrics that are shown on progress bars, as numbers."""
        shown = self._latest.metrics.on_bar
        return {name: value for name, value in self.callback_metrics.items() if name in shown}

    # ----------------------------------------------------------------------------------------- what it is about to do

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked training to stop; set it to True to ask, to False to take that back."""
        return self._latest.stop_reason is not None

    @should_stop.setter
    def should_stop(self, wanted: bool) -> None:
        if self.loop is None:
            raise RuntimeError("nothing is running: should_stop can be set while a run lasts")
        if wanted:
            self.loop.stop(SET)
        else:
            self.loop.withdraw_stop(SET)

    @property
    def interrupted(self) -> bool:
        """Whether the run was ended early by the user or the system."""
        return self._latest.status == "interrupted" or self._latest.interrupt_reason is not None

    @property
    def sanity_checking(self) -> bool:
        """Whether this is the evaluation before training, whose metrics do not count."""
        evaluation = self._latest.evaluation
        return evaluation is not None and evaluation.sanity

    @property
    def training(self) -> bool:
        """Whether a fit is on and nothing is evaluated at the moment."""
        return self._running and self._latest.stage == "fit" and self._latest.evaluation is None

    @property
    def validating(self) -> bool:
        """Whether validation data is being evaluated, the check before training apart."""
        return self._evaluates("validate") and not self.sanity_checking

    @property
    def testing(self) -> bool:
        """Whether test data is being evaluated."""
        return self._evaluates("test")

    @property
    def predicting(self) -> bool:
        """Whether predictions are being made."""
        return self._evaluates("predict")

    @property
    def disable_validation(self) -> bool:
        """Whether the run has nothing to validate with: no data, or no validation_step."""
        return "validate" not in self._latest.eval_sources or not hasattr(self._latest.module, "validation_step")

    @property
    def _running(self) -> bool:
        return self._latest.status == "running"

    def _evaluates(self, stage: str) -> bool:
        evaluation = self._latest.evaluation
        return evaluation is not None and evaluation.stage == stage

    # -------------------------------------------------------------------------------------------------------- world

    @property
    def global_rank(self) -> int:
        """This process among all."""
        return self._latest.world.rank

    @property
    def local_rank(self) -> int:
        """This process among those of its machine."""
        return self._latest.world.local_rank

    @property
    def world_size(self) -> int:
        """How many processes train together."""
        return self._latest.world.size

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes files."""
        return self._latest.world.is_main

    @property
    def on_gpu(self) -> bool:
        """Whether the module is on a CUDA device."""
        return self._latest.device.type == "cuda"
