"""Write metrics for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightloop import Loop, hookimpl, option
from lightloop_plugins.loggers import Ending, Logger


class TensorBoard(Logger):
    """Write an event file in the run's directory, which ``tensorboard --logdir runs`` shows."""

    name = "tensorboard"

    flush_seconds: float = option(10.0, "Seconds after which what was written is on disk.", enables=False)

    def check(self) -> None:
        if not self.flush_seconds > 0:
            raise self.refuse("flush_seconds", "a number above 0")
        self._writer: Any = None

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
        import tensorboardX

        resumed = loop.global_step + 1 if loop.global_step else None  # what the run has gone back before is hidden
        self._writer = tensorboardX.SummaryWriter(str(directory), purge_step=resumed, flush_secs=self.flush_seconds)

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        rows = "".join(f"| {name} | {value} |\n" for name, value in hyperparameters.items())
        self._writer.add_text("hparams", "| name | value |\n|---|---|\n" + rows, 0)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, status: Ending) -> None:
        writer, self._writer = self._writer, None
        writer.close()
