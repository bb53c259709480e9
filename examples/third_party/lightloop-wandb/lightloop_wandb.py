"""Log runs to Weights & Biases."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from lightloop import Loop, option
from lightloop_plugins.loggers import Ending, Logger

STEP = "global_step"
"""What the charts of all other metrics have on their x-axis."""
EXIT_CODES = {"success": 0, "failed": 1, "interrupted": 255}
"""Those that Weights & Biases itself gives to a script that ends well, raises, or is interrupted."""


class Wandb(Logger):
    """Log metrics and hyperparameters to a run of Weights & Biases, whose files are in the run's directory.

    Nothing leaves the machine unless that is asked for, by ``wandb_mode="online"`` or ``WANDB_MODE``: an offline run is
    uploaded by ``wandb sync``. A resumed run goes on under its old id.
    """

    name = "wandb"
    works_with = ">=0.1"
    state = ("run_id",)
    transient = ("_run",)
    on_failure = "disable"  # a service that is away ends no training

    project: str | None = option(None, "The project; that of the run's directory, such as the module's class, if None.")
    entity: str | None = option(None, "The user or team that the project belongs to.", enables=False)
    mode: Literal["online", "offline"] | None = option(
        None, "Whether metrics are uploaded as they come; WANDB_MODE says so if None, and offline if that is not set."
    )

    def validate(self) -> None:
        self.run_id: str | None = None
        self._run: Any = None

    def open(self, loop: Loop, directory: Path) -> None:
        import wandb

        mode = self.mode or os.environ.get("WANDB_MODE", "offline")
        resumed = self.run_id if loop.global_step else None
        wandb.setup(wandb.Settings(mode=mode))  # type: ignore[arg-type]  # else it reports how it is used while offline
        with _program_kept():
            self._run = wandb.init(
                project=self.project or directory.parent.name,
                entity=self.entity,
                name=directory.name,
                dir=directory,
                id=resumed,
                resume="allow" if resumed and mode == "online" else None,
                mode=mode,  # type: ignore[arg-type]
                settings=wandb.Settings(console="off", silent=True),
            )
        self.run_id = self._run.id
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        self._run.config.update(dict(hyperparameters), allow_val_change=True)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({**metrics, STEP: step})  # not step=: a resumed run may have gone back, and such rows are dropped

    def close(self, status: Ending) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=EXIT_CODES[status])


@contextmanager
def _program_kept() -> Iterator[None]:
    """What a program calls when it ends is put back: how the run ended is said when it is closed."""
    kept = sys.excepthook, sys.exit
    try:
        yield
    finally:
        sys.excepthook, sys.exit = kept  # type: ignore[assignment]
