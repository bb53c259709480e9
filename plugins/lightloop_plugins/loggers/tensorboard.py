"""Write metrics for TensorBoard."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightloop import Loop, hookimpl, option
from lightloop_plugins.loggers import Ending, Logger


class TensorBoard(Logger):
    """Write an event file in the run's directory, which ``tensorboard --logdir runs`` shows."""

    name = "tensorboard"
    state = ("_step", "_rows")
    transient = ("_writer", "_resumed")

    flush_seconds: float = option(10.0, "Seconds after which what was written is on disk.", enables=False)

    def check(self) -> None:
        if not self.flush_seconds > 0:
            raise self.refuse("flush_seconds", "a number above 0")
        self._writer: Any = None
        self._forget()

    def _forget(self) -> None:
        self._rows: list[dict[str, float]] = []
        self._step: int | None = None
        self._resumed: Mapping[str, Any] | None = None

    @property
    def experiment(self) -> Any:
        """The ``tensorboardX.SummaryWriter`` of the run, for images, histograms and the like; None outside a run."""
        return self._writer

    @hookimpl
    def setup(self, loop: Loop) -> None:
        super().setup(loop)
        self._forget()
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"the tensorboard logger needs tensorboardX ({error}): pip install tensorboardX"
            ) from error

    def open(self, loop: Loop, directory: Path) -> None:
        import tensorboardX

        suffix = f".{uuid.uuid4().hex[:12]}"  # no file of the same second has it, and no link that was put there before
        if self._resumed is None:
            self._writer = tensorboardX.SummaryWriter(
                str(directory), filename_suffix=suffix, flush_secs=self.flush_seconds
            )
            return
        step, rows = self._resumed["step"], self._resumed["rows"]
        self._writer = tensorboardX.SummaryWriter(
            str(directory),
            purge_step=loop.global_step,  # what the run has gone back before is hidden; what it had at this step comes again
            filename_suffix=suffix,
            flush_secs=self.flush_seconds,
        )
        for row in rows if step == loop.global_step else ():
            self.write(row, step)

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        rows = "".join(f"| {name} | {value} |\n" for name, value in hyperparameters.items())
        self._writer.add_text("hparams", "| name | value |\n|---|---|\n" + rows, 0)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        if step != self._step:
            self._step, self._rows = step, []
        self._rows.append(dict(metrics))
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, status: Ending) -> None:
        writer, self._writer = self._writer, None
        writer.close()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "rows": list(self._rows)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._resumed = state
