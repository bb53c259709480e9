"""``self.logger`` of a LightningModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightloop import Loop
from lightloop.toolkit import fetch


class Logger:
    """All live loggers as one of Lightning's; ``experiment`` is that of the first that has one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def experiment(self) -> Any:
        """What the first logger that has one writes with, such as TensorBoard's SummaryWriter."""
        for plugin in self._loop.plugins:
            if "logger" in plugin.tags and hasattr(plugin, "experiment"):
                return plugin.experiment
        raise AttributeError("none of the live loggers has an experiment: give Trainer(logger='tensorboard')")

    @property
    def log_dir(self) -> str | None:
        """The directory of the run, once there is one."""
        path = self._loop.trainer.run_dir
        return None if path is None else str(path)

    save_dir = root_dir = log_dir

    @property
    def name(self) -> str:
        """What the runs of the experiment have in common."""
        return self._loop.trainer.run_name or type(self._loop.module).__name__

    @property
    def version(self) -> str | None:
        """The run's own name."""
        path = self._loop.trainer.run_dir
        return None if path is None else path.name

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write a row, under ``step`` or the run's."""
        loop = self._loop
        if metrics and loop.world.is_main:
            at = loop.global_step if step is None else step
            loop.hook.log_metrics(loop=loop, metrics=fetch(dict(metrics)), step=at)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing: loggers write ``module.hparams`` by themselves."""

    save = finalize = after_save_checkpoint = log_hyperparams
