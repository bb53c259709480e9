"""What a Trainer tells of its latest run, under the names that the field knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightloop.loop import Loop
from lightloop.metrics import fetch
from lightloop.optimizers import Schedule
from lightloop.world import World

SET = "trainer.should_stop was set"


class RunAttributes:
    """What the latest run is at; before the first one, what a run begins with."""

    loop: Loop | None

    # ----------------------------------------------------------------------------------------------- how far it is

    @property
    def global_step(self) -> int:
        """How many windows have been applied as optimizer steps."""
        return self.loop.global_step if self.loop else 0

    @property
    def current_epoch(self) -> int:
        """The epoch that is being trained, from 0; after a fit, how many are finished."""
        return self.loop.epoch if self.loop else 0

    @property
    def batch_idx(self) -> int:
        """The batch within the epoch, from 0."""
        return self.loop.batch_idx if self.loop else 0

    @property
    def total_batch_idx(self) -> int:
        """How many training batches are done in all epochs."""
        return self.loop.total_batches if self.loop else 0

    @property
    def is_last_batch(self) -> bool:
        """Whether the training batch is the last of its epoch, after limits."""
        return self.loop is not None and self.loop.is_last_batch

    @property
    def num_training_batches(self) -> int | float:
        """How many batches a training epoch has, after limits; infinity where the loader cannot tell."""
        size = self.loop.num_batches if self.loop else 0
        return float("inf") if size is None else size

    @property
    def estimated_stepping_batches(self) -> int | float:
        """How many optimizer steps the whole run will make, as far as that is known; else infinity."""
        steps = self.loop.total_steps if self.loop else 0
        return float("inf") if steps is None else steps

    # --------------------------------------------------------------------------------------------- what it works on

    @property
    def model(self) -> nn.Module | None:
        """The module that is trained or evaluated."""
        return self.loop.module if self.loop else None

    @property
    def train_dataloader(self) -> Iterable[Any] | None:
        """The loader that is trained on, as the plugins prepared it."""
        return self.loop.train_loader if self.loop else None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers, in the order in which the user gave them."""
        return self.loop.optimizers if self.loop else []

    @property
    def optimizer_frequencies(self) -> list[int]:
        """For how many windows in turn each optimizer steps; empty where all step in each."""
        return self.loop.frequencies if self.loop else []

    @property
    def lr_scheduler_configs(self) -> list[Schedule]:
        """The learning-rate schedulers and when they are stepped."""
        return self.loop.schedules if self.loop else []

    @property
    def lr_schedulers(self) -> list[dict[str, Any]]:
        """The same as mappings: ``trainer.lr_schedulers[0]["scheduler"]``."""
        return [vars(schedule) for schedule in self.lr_scheduler_configs]

    @property
    def loss(self) -> Tensor | None:
        """The loss of the latest piece that went forward, detached, where it is."""
        return None if self.loop is None or self.loop.loss is None else self.loop.loss.detach()

    # ----------------------------------------------------------------------------------------------------- metrics

    @property
    def callback_metrics(self) -> dict[str, float]:
        """The latest value of every metric of the latest run, as numbers; those of an epoch are means so far."""
        if self.loop is None:
            return {}
        metrics = self.loop.metrics
        return fetch({**metrics.latest, **{name: running.value() for name, running in metrics.epoch.items()}})

    @property
    def logged_metrics(self) -> dict[str, float]:
        """The same: whatever is logged is for the loggers too."""
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The latest value of the metrics that are shown on progress bars, as numbers."""
        shown = self.loop.metrics.on_bar if self.loop else set()
        return {name: value for name, value in self.callback_metrics.items() if name in shown}

    # ----------------------------------------------------------------------------------------- what it is about to do

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked training to stop; set it to True to ask, to False to take that back."""
        return self.loop is not None and self.loop.stop_reason is not None

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
        return self.loop is not None and (self.loop.status == "interrupted" or self.loop.interrupt_reason is not None)

    @property
    def sanity_checking(self) -> bool:
        """Whether this is the evaluation before training, whose metrics do not count."""
        return self.loop is not None and self.loop.evaluation is not None and self.loop.evaluation.sanity

    @property
    def training(self) -> bool:
        """Whether a fit is on and nothing is evaluated at the moment."""
        return self._running and self.loop is not None and self.loop.stage == "fit" and self.loop.evaluation is None

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
        loop = self.loop
        return loop is None or "validate" not in loop.eval_sources or not hasattr(loop.module, "validation_step")

    # -------------------------------------------------------------------------------------------------------- world

    @property
    def global_rank(self) -> int:
        """This process among all."""
        return self._world.rank

    @property
    def local_rank(self) -> int:
        """This process among those of its machine."""
        return self._world.local_rank

    @property
    def world_size(self) -> int:
        """How many processes train together."""
        return self._world.size

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes files."""
        return self._world.is_main

    @property
    def on_gpu(self) -> bool:
        """Whether the module is on a CUDA device."""
        return self.loop is not None and self.loop.device.type == "cuda"

    @property
    def _world(self) -> World:
        return self.loop.world if self.loop else World()

    @property
    def _running(self) -> bool:
        return self.loop is not None and self.loop.status == "running"

    def _evaluates(self, stage: str) -> bool:
        return self.loop is not None and self.loop.evaluation is not None and self.loop.evaluation.stage == stage
