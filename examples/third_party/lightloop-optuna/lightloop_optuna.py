"""Let Optuna prune unpromising runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from lightloop import Loop, Plugin, hookimpl, option


@runtime_checkable
class Trial(Protocol):
    """What is needed of an Optuna trial; one that speaks for several processes has it, too."""

    number: int

    def report(self, value: float, step: int) -> None: ...

    def should_prune(self) -> bool: ...


class Pruning(Plugin):
    """Report a metric to an Optuna trial after each validation, and stop the run if the study's pruner says so.

    The run ends like any that is asked to stop: what logs and saves does its part, and then ``fit`` raises
    ``optuna.TrialPruned``, which the study waits for. Without validation data the metric is reported after each epoch.
    """

    name = "optuna"
    state = ("reports",)
    transient = ("pruned", "_evaluated")
    after = ("log_every", "validation")
    before = ("checkpoint",)
    works_with = ">=0.1"

    trial: Trial | None = option(None, "The trial that the run is for, as the study gives it to the objective.")
    monitor: str = option("val_loss", "The metric to report.", enables=False)

    def validate(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.reports = 0
        self.pruned: str | None = None
        self._evaluated = False

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._begin()

    @hookimpl
    def after_evaluation_batches(self, loop: Loop) -> None:
        assert loop.evaluation is not None
        self._evaluated = loop.stage == "fit" and not loop.evaluation.sanity

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if self._evaluated:
            self._report(loop)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        if self._evaluated or "validate" not in loop.eval_sources:
            self._report(loop)

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if self.pruned is not None and loop.status in ("finished", "stopped"):
            from optuna import TrialPruned

            raise TrialPruned(self.pruned)

    def state_dict(self) -> dict[str, Any]:
        return {"reports": self.reports}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.reports = state["reports"]

    def _report(self, loop: Loop) -> None:
        self._evaluated = False
        if self.trial is None or self.pruned is not None:
            return
        if self.monitor not in loop.metrics.latest:
            raise RuntimeError(
                f"optuna_monitor is {self.monitor!r}, which has not been logged; "
                f"logged are {', '.join(sorted(loop.metrics.latest)) or 'none'}"
            )
        value, step = float(loop.metrics.latest[self.monitor]), self.reports
        self.trial.report(value, step)
        self.reports += 1
        if self.trial.should_prune():
            self.pruned = f"optuna prunes trial {self.trial.number} at report {step}: {self.monitor} = {value:.6g}"
            loop.stop(self.pruned)
