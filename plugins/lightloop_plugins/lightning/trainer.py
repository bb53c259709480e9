"""The Trainer as modules and callbacks of Lightning expect to find it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lightloop import Loop
from lightloop_plugins.lightning.logger import Logger
from lightloop_plugins.lightning.strategy import Strategy


class View:
    """Lightloop's Trainer, and beside its own the attributes that Lightning's has; what is set is set on the Trainer."""

    progress_bar_callback = checkpoint_callback = early_stopping_callback = None
    barebones = False

    def __init__(self, loop: Loop, datamodule: Any, callbacks: list[Any], plugin: Any, log: Any) -> None:
        strategy = Strategy(loop, plugin)
        vars(self).update(_loop=loop, _trainer=loop.trainer, datamodule=datamodule, strategy=strategy)
        vars(self).update(precision_plugin=strategy, callbacks=callbacks, fit_loop=FitLoop(loop))
        vars(self).update(_logger_connector=self, _log=log)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_trainer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_trainer"], name, value)

    @property
    def lightning_module(self) -> Any:
        """The module of the run."""
        return self._loop.module

    @property
    def global_step(self) -> int:
        """How many steps all optimizers together have taken, which is how Lightning counts."""
        return sum(self._loop.optimizer_steps)

    @property
    def state(self) -> Any:
        """Function, status and stage of the run, in Lightning's words."""
        running = {"fit": "train" if self._loop.evaluation is None else "validate"}
        stage = "sanity_check" if self.sanity_checking else running.get(self._loop.stage, self._loop.stage)
        return SimpleNamespace(fn=self._loop.stage, status=self._loop.status, stage=stage)

    @property
    def evaluating(self) -> bool:
        """Whether this is a run of validate or test."""
        return self._loop.stage in ("validate", "test")

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The latest values, as tensors that have not been read; of an epoch, or a pass, once its batches are done."""
        metrics, evaluation = self._loop.metrics, self._loop.evaluation
        over = self._log.of_epoch if evaluation is None else evaluation.batch is None
        if over:
            self._log.compute()
        values = dict(metrics.latest)
        if over:
            for name, running in metrics.epoch.items():
                values[name] = values[running.name or name] = running.value()
        return {
            name: torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float32)
            for name, value in values.items()
        }

    logged_metrics = callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, Any]:
        """Those of :attr:`callback_metrics` that bars show."""
        return {name: value for name, value in self.callback_metrics.items() if name in self._loop.metrics.on_bar}

    @property
    def gradient_clip_val(self) -> Any:
        """The limit of the plugin clip; None where nothing is clipped."""
        return self._trainer.gradient_clip_val if self.plugin("clip") else None

    @property
    def gradient_clip_algorithm(self) -> Any:
        """The algorithm of the plugin clip; None where nothing is clipped, and for the default one, as in Lightning."""
        algorithm = self._trainer.gradient_clip_algorithm
        return algorithm if self.plugin("clip") and algorithm != "norm" else None

    @property
    def loggers(self) -> list[Any]:
        """One logger that stands for all live ones, or none."""
        return [Logger(self._loop)] if any(hasattr(plugin, "log_metrics") for plugin in self._loop.plugins) else []

    @property
    def logger(self) -> Any:
        """The same, or None."""
        return next(iter(self.loggers), None)

    @property
    def log_dir(self) -> str | None:
        """The directory of the run, once there is one."""
        return self.logger.log_dir if self.logger else None

    @property
    def should_update_logs(self) -> bool:
        """Whether the step that is made is one of every ``log_every_n_steps``."""
        every = self.log_every_n_steps
        due = isinstance(every, int) and every > 0 and (self._loop.global_step + 1) % every == 0
        return bool(due or self.should_stop)


class FitLoop:
    """Where ``trainer.fit_loop.epoch_loop`` says how far a run is."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.epoch_loop = self

    @property
    def _batches_that_stepped(self) -> int:
        return self._loop.global_step

    @property
    def batch_idx(self) -> int:
        """The batch within the epoch."""
        return self._loop.batch_idx

    @property
    def total_batch_idx(self) -> int:
        """How many batches are done."""
        return self._loop.total_batches
