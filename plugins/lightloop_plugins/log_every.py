"""Pass logged metrics to the loggers: a row every n steps, one per epoch, and one per evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightloop import Evaluation, Every, Loop, Plugin, hookimpl, option
from lightloop.toolkit import Running, apart, fetch

MORE = ("name", "folded", "even")
"""What is kept of a running metric beside its values."""


class LogEvery(Plugin):
    """Write a row at the first step, every n-th and the last; the means of each epoch; the results of each evaluation.

    Steps are applied optimizer steps, counted over the whole run. The row of a step has, for each metric, the mean over
    the batches of its window, and all of them are fetched from the device together; between two rows nothing is.
    """

    name = "log_every"
    tags = ("watches",)
    after = ("throughput", "device_stats", "lr_monitor", "grad_norm")
    before = ("validation",)
    default = True
    state = ("_every", "_started", "_pending")
    transient = ("_wanted", "_began")
    state_version = 2

    when: int | float | str | Every | None = option(
        50,
        "Steps between two rows, or any other rhythm ('10 s', '1 epoch'); None and 0 log no steps.",
        flag="log_every_n_steps",
        aliases=("row_log_interval", "add_row_log_interval"),
        neutral=True,
    )

    def validate(self) -> None:
        self._every = Every(self.when or 1, "log_every_n_steps")
        self._wanted = self._started = False
        self._pending: tuple[int, dict[str, Running]] | None = None
        """Epoch and metrics of the latest step, whose row is not written."""
        self._began = False

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._every.start(loop)
        self._started, self._pending, self._began = False, None, False
        self._wanted = bool(self.when) and any(hasattr(plugin, "log_metrics") for plugin in loop.plugins)
        if not self._wanted:
            loop.opt_out(self, "after_batch")

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        self._began = True

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if loop.stepped:
            self._pending = loop.epoch, loop.metrics.step
            if self._every.due(loop) or not self._started:
                self._write_step(loop)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        if self._wanted:
            self.after_batch(loop)  # the end of the epoch may have closed a window
        loop.fold_metrics()  # of what callbacks have logged at the end of the epoch
        if loop.epoch_metrics:
            loop.write(_row(loop.epoch, loop.epoch_metrics))

    @hookimpl
    def after_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        if evaluation.metrics and not evaluation.sanity:
            loop.write(_row(loop.epoch, evaluation.metrics))

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if self._began:  # a run that had been over writes nothing
            self._write_step(loop)

    def state_dict(self) -> dict[str, Any]:
        pending: list[Any] | None = None
        if self._pending is not None:
            epoch, row = self._pending
            pending = [epoch, {name: _kept(running) for name, running in row.items()}]
        return {"every": self._every.state_dict(), "started": self._started, "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._every.load_state_dict(state["every"])
        self._started, self._pending = state["started"], None
        if state["pending"] is not None:
            epoch, row = state["pending"]
            self._pending = (
                epoch,
                {
                    name: Running(
                        reduce, [(value, weight) for value, weight in pairs], **dict(zip(MORE, more, strict=False))
                    )
                    for name, (reduce, pairs, *more) in row.items()
                },
            )

    @classmethod
    def migrate_state(cls, state: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """A state of version 1 has no row that is not written."""
        return {**state, "pending": None}

    def _write_step(self, loop: Loop) -> None:
        """Write the row of the latest step, unless it is written."""
        pending, self._pending, self._started = self._pending, None, True
        if pending is not None and loop.world.is_main:
            epoch, step = pending
            row = fetch({name: running.value() for name, running in step.items()})
            if row:
                loop.write(_row(epoch, row))


def _kept(running: Running) -> list[Any]:
    return [running.reduce, list(map(list, running.pairs)), *(getattr(running, name) for name in MORE)]


def _row(epoch: int, metrics: Mapping[str, float]) -> dict[str, float]:
    """``metrics`` after the epoch that they are of; one that the user calls "epoch" is "epoch_" there."""
    return {"epoch": epoch, **apart(metrics, "epoch")}
