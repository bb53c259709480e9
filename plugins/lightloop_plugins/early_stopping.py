"""End training when a metric has not improved for a while."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

from lightloop import Evaluation, Loop, Plugin, hookimpl, option
from lightloop.toolkit import warn

log = logging.getLogger("lightloop")


class EarlyStopping(Plugin):
    """Stop training after ``patience`` checks in a row without an improvement of ``monitor``.

    A check is made after each validation pass, or at the end of a training epoch in which none was made, if the metric has
    a new value: of a metric logged with ``on_epoch``, the epoch's. The first one sets the best score, which moves only with an improvement: a change by more than
    ``min_delta`` in the right direction. A minimum of epochs or steps delays the end; should the metric recover while it
    does, the request is withdrawn.
    """

    name = "early_stopping"
    tags = ("stops",)
    after = ("log_every", "validation")
    before = ("checkpoint",)
    exposes: ClassVar[Mapping[str, str]] = {"early_stop_callback": "itself"}
    state = (
        "wait_count", "best_score", "last_score", "stopped_epoch", "_reason", "_validated", "_checked", "_updates",
    )  # fmt: skip
    transient = ("_better", "_passed", "_sign", "_warned")
    state_version = 2

    monitor: str = option("val_loss", "The metric to watch.", enables=False)
    min_delta: float = option(0.0, "Only a change larger than this counts as an improvement.", enables=False)
    patience: int = option(
        3, "Number of checks in a row without improvement after which training stops.", enables=False
    )
    verbose: bool = option(False, "Report each improvement through Python's logging.", enables=False, neutral=True)
    mode: Literal["min", "max", "auto"] = option(
        "min", "What is better: less, more; auto is more where the metric's name has 'acc' in it.", enables=False
    )
    strict: bool = option(True, "Raise an error if the metric is missing when it is checked.", enables=False)
    check_finite: bool = option(True, "Stop at once if the metric is NaN or infinite.", enables=False)
    stopping_threshold: float | None = option(None, "Stop at once if the metric is better than this.", enables=False)
    divergence_threshold: float | None = option(None, "Stop at once if the metric is worse than this.", enables=False)
    check_on_train_epoch_end: bool | None = option(
        None, "True checks only at the end of training epochs, False only after validation.", enables=False
    )
    callback: bool | EarlyStopping | None = option(
        None,
        "True ends training early, by val_loss unless something else is said; an EarlyStopping says all of it.",
        flag="early_stop_callback",
        aliases=("enable_early_stop",),
        switch=True,
    )

    def validate(self) -> None:
        if self.patience < 0:
            raise self.invalid("patience", "a whole number from 0")
        if not self.min_delta >= 0:
            raise self.invalid("min_delta", "a number from 0")
        self.key = f"{self.name}:{self.monitor}"
        self.verbose = self.verbose or self.callback is True
        mode = self.mode
        if mode == "auto":
            mode = "max" if "acc" in self.monitor else "min"
            warn(f"early_stopping: mode='auto' takes {self.monitor!r} for {mode!r}; say so")
        self._better = operator.gt if mode == "max" else operator.lt
        self._sign = 1 if mode == "max" else -1
        self._begin()

    @property
    def itself(self) -> EarlyStopping:
        """What ``trainer.early_stop_callback`` is."""
        return self

    def _begin(self) -> None:
        self.wait_count = 0
        self.best_score = -self._sign * math.inf
        self.last_score: float | None = None
        self.stopped_epoch: int | None = None
        self._reason: str | None = None
        self._validated = self._passed = self._checked = self._warned = False
        self._updates: int | None = None
        """How often the metric had been given a value when it was last looked at; None before the fit."""

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        self._begin()
        yield  # a resumed run now knows its scores, and what it had seen of the metric
        if self._updates is None:  # a run that begins, or one that was resumed with another metric to watch
            self._updates = loop.metrics.monitored(self.monitor)[0]
        reason, epoch = self._reason, self.stopped_epoch
        self._ask(loop)
        if self._reason == reason:  # it was asked then, not now
            self.stopped_epoch = epoch

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        if not loop.batch_idx:  # a resumed run may go on inside an epoch
            self._validated = self._checked = False

    @hookimpl
    def after_evaluation_batches(self, loop: Loop, evaluation: Evaluation) -> None:
        if loop.stage == "fit" and not evaluation.sanity:
            self._validated = self._passed = True

    @hookimpl
    def after_evaluation(self, loop: Loop) -> None:
        passed, self._passed = self._passed, False
        if passed and self.check_on_train_epoch_end is not True:
            self._look(loop, due=self.check_on_train_epoch_end is False)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        if self.check_on_train_epoch_end is not False and not self._checked and loop.epoch_finished:
            due = self.check_on_train_epoch_end is True or self._validated or "validate" not in loop.eval_sources
            self._look(loop, due)

    @classmethod
    def migrate_state(cls, state: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """A state of version 1 does not tell what had been looked at in the epoch."""
        looked = dict.fromkeys(("validated", "passed", "checked"), False)
        return {**state, **looked, "reason": None, "updates": None}

    def _look(self, loop: Loop, due: bool) -> None:
        """Check the metric if it has a new value; where it is ``due`` and there is none at all, say so."""
        updates, value = loop.metrics.monitored(self.monitor)
        if updates and updates != self._updates:
            self._updates, self._checked = updates, True
            self._score(loop, float(value))  # type: ignore[arg-type]
        elif due and self.monitor not in loop.metrics.names():
            self._say_missing(loop)

    def _score(self, loop: Loop, score: float) -> None:
        self.last_score = score
        if self._better(score - self._sign * self.min_delta, self.best_score):
            if self.verbose and loop.world.is_main:
                log.info("%s improved from %s to %s", self.monitor, self.best_score, score)
            self.best_score, self.wait_count = score, 0
        elif math.isfinite(score) or not self.check_finite:
            self.wait_count += 1
        self._ask(loop)

    def _ask(self, loop: Loop) -> None:
        """Ask for the end if the last score is a reason for it, and withdraw what was asked before if it is none."""
        reason = self._why()
        if self._reason is not None and reason != self._reason:
            loop.withdraw_stop(self._reason)
        if reason is not None:
            loop.stop(reason)
            self.stopped_epoch = loop.epoch
            if loop.world.is_main and reason != self._reason:
                log.info("%s", reason)
        else:
            self.stopped_epoch = None
        self._reason = reason

    def _why(self) -> str | None:
        """Why training should end by what is known now."""
        score, name = self.last_score, self.monitor
        if score is None:
            return None
        if self.check_finite and not math.isfinite(score):
            return f"early stopping: {name} is {score}"
        if self.stopping_threshold is not None and self._better(score, self.stopping_threshold):
            return f"early stopping: {name} is better than {self.stopping_threshold}"
        if self.divergence_threshold is not None and self._better(-score, -self.divergence_threshold):
            return f"early stopping: {name} is worse than {self.divergence_threshold}"
        if self.wait_count and self.wait_count >= self.patience:
            checks = "1 check" if self.patience < 2 else f"{self.patience} checks"
            return f"early stopping: {name} has not improved on {self.best_score:.6g} for {checks}"
        return None

    def _say_missing(self, loop: Loop) -> None:
        message = (
            f"early stopping watches {self.monitor!r}, which has not been logged; "
            f"logged are {', '.join(loop.metrics.names()) or 'none'}"
        )
        if self.strict:
            raise RuntimeError(f"{message}. Log it, watch another, or let it pass with early_stopping_strict=False")
        if not self._warned:
            self._warned = True
            warn(message)
