"""Advance the schedules of the learning rates: by steps, epochs or batches, and by a metric."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lightloop import Loop, Metrics, Plugin, Schedule, defined, hookimpl


class LRSchedule(Plugin):
    """Step each scheduler that ``configure_optimizers`` returned, as its interval and frequency say.

    * ``step``: after every ``frequency``-th applied step of its own optimizer, counted over the whole run; a step that
      was skipped counts for nothing.
    * ``epoch``: at the end of every ``frequency``-th epoch that ran to its end: before validation, so that what is saved
      there has the rate of the epoch to come; a scheduler with a monitor goes after it, when its metric is there.
    * ``batch``: after every ``frequency``-th batch, whether or not it closed a window.

    A scheduler with a ``monitor`` is given the metric, and only one that is new since it was last used. Without a new
    value nothing is stepped: an error if the schedule is ``strict``, which is the default, else one warning. NaN is handed
    on as it is; ReduceLROnPlateau takes it for no improvement. Several processes use the value of rank 0.

    A module that defines ``lr_scheduler_step(scheduler, metric)`` is asked to do the step itself; ``metric`` is None
    for a scheduler without a monitor.
    """

    name = "lr_schedule"
    default = True
    after = ("log_every", "validation")
    before = ("checkpoint",)

    def check(self) -> None:
        self._forget()
        self._loaded: Mapping[str, Any] | None = None

    def _forget(self) -> None:
        self._schedules: list[Schedule] = []
        self._metrics = Metrics()
        self._by_module: Callable[..., Any] | None = None
        self._used: dict[int, int] = {}
        self._kept: dict[int, Any] = {}
        self._warned: set[int] = set()

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if not loop.schedules:
            loop.leave_out(self)
            return
        self._forget()
        self._schedules, self._metrics = list(loop.schedules), loop.metrics
        self._by_module = defined(loop.module, "lr_scheduler_step")
        intervals = {schedule.interval for schedule in loop.schedules}
        for interval, hook in (("step", "after_step"), ("epoch", "after_epoch"), ("batch", "after_batch")):
            if interval not in intervals:
                loop.leave_out(self, hook)
        if self._loaded is not None:
            self._apply(self._loaded)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        # Whatever a resumed run has among its metrics by now was used before, save what state_dict kept.
        self._used = {id(schedule): self._updates(schedule) for schedule in self._schedules}
        loop.leave_out(self, "before_epoch")

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        for schedule in loop.schedules:
            if schedule.interval == "step" and schedule.optimizer_idx == (loop.optimizer_idx or 0):
                self._advance(loop, schedule, loop.optimizer_steps[schedule.optimizer_idx])

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        for schedule in loop.schedules:
            if schedule.interval == "batch":
                self._advance(loop, schedule, loop.total_batches + 1)

    @hookimpl(specname="after_epoch", wrapper=True)
    def around_after_epoch(self, loop: Loop) -> Generator[None, None, None]:
        self._end_epoch(loop, monitored=False)
        return (yield)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        self._end_epoch(loop, monitored=True)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._forget()
        self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        fresh = {
            str(index): self._value(schedule)
            for index, schedule in enumerate(self._schedules)
            if schedule.monitor and self._is_fresh(schedule)
        }
        return {"schedulers": [schedule.scheduler.state_dict() for schedule in self._schedules], "fresh": fresh}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._schedules:
            self._apply(state)
        else:
            self._loaded = state  # the schedulers are not built yet

    def _apply(self, state: Mapping[str, Any]) -> None:
        if len(state["schedulers"]) != len(self._schedules):
            raise ValueError(
                f"lr_schedule: the state is of {len(state['schedulers'])} schedulers; configure_optimizers returns "
                f"{len(self._schedules)}"
            )
        for schedule, its_state in zip(self._schedules, state["schedulers"], strict=True):
            schedule.scheduler.load_state_dict(its_state)
        self._kept = {id(self._schedules[int(index)]): value for index, value in state["fresh"].items()}

    def _end_epoch(self, loop: Loop, monitored: bool) -> None:
        for schedule in loop.schedules if loop.epoch_finished else ():
            if schedule.interval == "epoch" and (schedule.monitor is not None) == monitored:
                self._advance(loop, schedule, loop.epoch + 1)

    def _advance(self, loop: Loop, schedule: Schedule, count: int) -> None:
        if count % schedule.frequency:
            return
        metric = None
        if schedule.monitor is not None:
            if not self._is_fresh(schedule):
                self._say_stale(schedule)
                return
            metric = loop.world.broadcast(self._value(schedule))
            self._used[id(schedule)] = self._updates(schedule)
            self._kept.pop(id(schedule), None)
        with _order_is_right(schedule.scheduler):
            if self._by_module is not None:
                self._by_module(schedule.scheduler, metric)
            else:
                schedule.scheduler.step(*(() if metric is None else (metric,)))

    def _updates(self, schedule: Schedule) -> int:
        return self._metrics.updates.get(schedule.monitor or "", 0)

    def _is_fresh(self, schedule: Schedule) -> bool:
        return id(schedule) in self._kept or self._updates(schedule) > self._used.get(id(schedule), 0)

    def _value(self, schedule: Schedule) -> Any:
        assert schedule.monitor is not None
        if self._updates(schedule) > self._used.get(id(schedule), 0):
            return self._metrics.latest[schedule.monitor]
        return self._kept[id(schedule)]

    def _say_stale(self, schedule: Schedule) -> None:
        known = schedule.monitor in self._metrics.latest
        what = (
            f"the lr_scheduler {schedule.name or type(schedule.scheduler).__name__} is due, and its metric "
            f"{schedule.monitor!r} {'has no new value since it was last used' if known else 'has not been logged'}; "
            f"logged are {', '.join(sorted(self._metrics.latest)) or 'none'}"
        )
        if schedule.strict:
            raise ValueError(
                f"{what}. Log it each time that the scheduler is due, give the scheduler a 'frequency' of so many "
                f"{schedule.interval} intervals, or let it pass with 'strict': False"
            )
        if id(schedule) not in self._warned:
            self._warned.add(id(schedule))
            warnings.warn(f"{what}. It is left as it is", stacklevel=2)


def _order_is_right(scheduler: Any) -> AbstractContextManager[None]:
    """Torch takes a scheduler's first step for a mistake where the optimizer's own first was skipped or is wrapped."""
    begun = getattr(scheduler, "_step_count", 1) > 1 and not hasattr(scheduler, "_schedulers")
    return nullcontext() if begun else _without_warnings()


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(Detected call of `lr_scheduler|Seems like `optimizer).step", UserWarning)
        yield
