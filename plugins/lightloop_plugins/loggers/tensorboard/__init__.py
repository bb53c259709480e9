"""Write metrics for TensorBoard."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightloop import Loop, hookimpl, option
from lightloop_plugins.loggers import Ending, Logger


class TensorBoard(Logger):
    """Write a TensorBoard event file in the run's directory, for ``tensorboard --logdir runs``."""

    name = "tensorboard"
    state = ("_step", "_rows")
    transient = ("_writer", "_resumed")

    flush_seconds: float = option(10.0, "Maximum seconds until a row is flushed to disk.", enables=False, neutral=True)

    def validate(self) -> None:
        if not self.flush_seconds > 0:
            raise self.invalid("flush_seconds", "a number above 0")
        self._writer: Any = None

    def reset(self) -> None:
        self._rows: list[dict[str, float]] = []
        self._step: int | None = None
        self._resumed = False

    @property
    def experiment(self) -> Any:
        """The ``tensorboardX.SummaryWriter`` of the run, for images, histograms and the like; None outside a run."""
        return self._writer

    @hookimpl
    def setup(self, loop: Loop) -> None:
        super().setup(loop)
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"the tensorboard logger needs tensorboardX ({error}): pip install tensorboardX"
            ) from error

    def open(self, loop: Loop, directory: Path) -> None:
        from lightloop_plugins.loggers.tensorboard.events import summary_writer

        # Files are read in the order of their names, which tensorboardX begins with the second. No other file has this
        # name, and no link that was put there before.
        suffix = f".{time.time_ns()}.{uuid.uuid4().hex[:12]}"
        purge = loop.global_step if self._resumed else None  # what is at this step and later comes again
        self._writer = summary_writer(directory, suffix, self.flush_seconds, purge)
        if self._resumed and self._step == purge:
            self._step, again = None, self._rows
            for row in again:
                self.write(row, loop.global_step)

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        rows = "".join(f"| {name} | {value} |\n" for name, value in hyperparameters.items())
        self._writer.add_text("hparams", "| name | value |\n|---|---|\n" + rows, 0)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        if step != self._step:
            self._step, self._rows = step, []
        self._rows.append(dict(metrics))
        for name, value in metrics.items():  # not add_scalar, which makes one name of "top 1" and "top_1"
            self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, simple_value=value)]), step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, status: Ending) -> None:
        writer, self._writer = self._writer, None
        writer.close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._resumed = True
