"""Step the learning-rate schedulers: per step, epoch or batch, and by a metric."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any

from lightloop import Loop, Plugin, Schedule, hookimpl
from lightloop.toolkit import context, defined, warn


class LRSchedule(Plugin):
    """Step each scheduler that ``configure_optimizers`` returned, at its interval and frequency.

    * ``step``: after every ``frequency``-th applied step of its own optimizer, counted over the whole run; a step that
      was skipped counts for nothing.
    * ``epoch``: at the end of every ``frequency``-th epoch that ran to its end: before validation, so that what is saved
      there has the rate of the epoch to come; a scheduler with a monitor goes after it, when its metric is there.
    * ``batch``: after every ``frequency``-th batch, whether or not it closed a window.

    A scheduler with a ``monitor`` is given the metric, at the end of an epoch the epoch's value of what is logged with
    ``on_epoch``, and only one that is new since it was last used. Without a new
    value nothing is stepped: an error if the schedule is ``strict``, which is the default, else one warning. NaN is handed
    on as it is; ReduceLROnPlateau takes it for no improvement. Several processes use the value of rank 0.

    A module that defines ``lr_scheduler_step(scheduler, metric)`` is asked to do the step itself; ``metric`` is None
    for a scheduler without a monitor.
    """

    name = "lr_schedule"
    tags = ("schedules",)
    default = True
    after = ("log_every", "validation")
    before = ("checkpoint",)
    state = ("_used",)
    transient = ("_by_module", "_warned")

    def validate(self) -> None:
        self._used: list[int] = []
        """For each schedule, how often its metric had been given a value when it was last used; the schedulers are the loop's."""
        self._by_module: Callable[..., Any] | None = None
        self._warned: set[int] = set()

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if not loop.schedules:
            loop.opt_out(self)
            return
        self._used = [0] * len(loop.schedules)
        self._by_module = defined(loop.module, "lr_scheduler_step")
        self._warned = set()
        intervals = {schedule.interval for schedule in loop.schedules}
        for interval, hook in (("step", "after_step"), ("epoch", "after_epoch"), ("batch", "after_batch")):
            if interval not in intervals:
                loop.opt_out(self, hook)

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        for index, schedule in enumerate(loop.schedules):
            if schedule.interval == "step" and schedule.optimizer_idx in loop.window.members:
                self._advance(loop, index, loop.optimizer_steps[schedule.optimizer_idx])

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        for index, schedule in enumerate(loop.schedules):
            if schedule.interval == "batch":
                self._advance(loop, index, loop.total_batches + 1)

    @hookimpl(specname="after_epoch", wrapper=True)
    def around_after_epoch(self, loop: Loop) -> Generator[None, None, None]:
        self._end_epoch(loop, monitored=False)
        return (yield)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        self._end_epoch(loop, monitored=True)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._by_module = None

    def _end_epoch(self, loop: Loop, monitored: bool) -> None:
        for index, schedule in enumerate(loop.schedules if loop.epoch_finished else ()):
            if schedule.interval == "epoch" and (schedule.monitor is not None) == monitored:
                self._advance(loop, index, loop.epoch + 1)

    def _advance(self, loop: Loop, index: int, count: int) -> None:
        schedule, metric = loop.schedules[index], None
        if count % schedule.frequency or schedule.paused:
            return
        if schedule.monitor is not None:
            updates, value = self._monitored(loop, schedule)
            if updates == self._used[index]:
                self._say_stale(loop, index)
                return
            self._used[index] = updates
            metric = loop.world.broadcast(value)
        if _has_begun(schedule.scheduler):
            self._step(schedule.scheduler, metric)
        else:
            with _order_is_right():
                self._step(schedule.scheduler, metric)

    def _monitored(self, loop: Loop, schedule: Schedule) -> tuple[int, Any]:
        """How often the metric has been given a value, and the last: the epoch's, or the step's within an epoch."""
        if schedule.interval == "epoch":
            return loop.metrics.monitored(schedule.monitor)  # type: ignore[arg-type]
        return loop.metrics.updates.get(schedule.monitor, 0), loop.metrics.latest.get(schedule.monitor)  # type: ignore[arg-type]

    def _step(self, scheduler: Any, metric: Any) -> None:
        if self._by_module is not None:
            self._by_module(scheduler, metric)
        elif metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def _say_stale(self, loop: Loop, index: int) -> None:
        schedule, metrics = loop.schedules[index], loop.metrics
        lacks = "has not been logged"
        if schedule.monitor in metrics.latest:
            lacks = "has no new value since it was last used"
        elif schedule.monitor in metrics.epoch:
            lacks = "is logged with on_epoch alone and has a value when the epoch is over"
        what = (
            f"the lr_scheduler {schedule.name or type(schedule.scheduler).__name__} is due, and its metric "
            f"{schedule.monitor!r} {lacks}; logged are {', '.join(metrics.names()) or 'none'}"
        )
        if schedule.strict:
            raise ValueError(
                f"{what}. Log it each time that the scheduler is due, give the scheduler a 'frequency' of so many "
                f"{schedule.interval} intervals, or let it pass with 'strict': False"
            )
        if index not in self._warned:
            self._warned.add(index)
            warn(f"{what}. It is left as it is")


def _has_begun(scheduler: Any) -> bool:
    """Whether torch has nothing more to say about a first step; those that are made of others may have one each."""
    return getattr(scheduler, "_step_count", 1) > 1 and not hasattr(scheduler, "_schedulers")


@context
def _order_is_right() -> Iterator[None]:
    """Torch takes a scheduler's first step for a mistake where the optimizer's own first was skipped or is wrapped."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(Detected call of `lr_scheduler|Seems like `optimizer).step", UserWarning)
        yield
