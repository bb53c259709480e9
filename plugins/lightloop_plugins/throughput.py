"""Log training speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import describe, warn

T = TypeVar("T")


class Throughput(Plugin):
    """Log samples, batches and steps per second, seconds per step, and the share of time spent waiting for data.

    They are means over the last ``window`` batches, by the clock of the host and without waiting for the device; over a
    window longer than what the device has queued, that is the device's speed. Evaluation is not counted. Samples are those
    of this process; where they cannot be counted, that is said, and they are not logged.
    """

    name = "throughput"
    tags = ("watches",)
    before = ("log_every", "validation")
    transient = ("_step", "_end", "_aside", "_batches", "_waited", "_counts")

    window: int = option(50, "Number of batches to average over.", enables=False)

    def validate(self) -> None:
        if self.window < 1:
            raise self.invalid("window", "a whole number from 1")
        self._step = 0
        self._clear(0)

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._clear(loop.global_step)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        self._end = perf_counter()

    @hookimpl(wrapper=True)
    def read_batches(self, loop: Loop) -> Generator[None, Any, Any]:
        batches = yield
        return self._timed(batches)

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        now = perf_counter()
        size = self._count(loop) if self._counts else 0
        self._batches.append((now - self._end, self._waited, size, loop.global_step - self._step))
        self._end, self._step = now, loop.global_step
        if loop.stepped:
            seconds, waited, samples, steps = (sum(column) for column in zip(*self._batches, strict=True))
            if self._counts:
                loop.log("throughput/samples_per_second", samples / seconds)
            loop.log("throughput/batches_per_second", len(self._batches) / seconds)
            loop.log("throughput/steps_per_second", steps / seconds)
            loop.log("throughput/seconds_per_step", seconds / steps)
            loop.log("throughput/waiting_for_data", waited / seconds)

    @hookimpl
    def before_evaluation(self, loop: Loop) -> None:
        self._aside = perf_counter()

    @hookimpl
    def after_evaluation(self, loop: Loop) -> None:
        self._end += perf_counter() - self._aside

    def _count(self, loop: Loop) -> int:
        size = None if loop.batch is None else loop.samples_in(loop.batch)
        if size is None and loop.batch is not None:
            self._counts = False
            warn(
                f"throughput cannot know how many samples are in {describe(loop.batch)} (at {loop.where()}), and logs no "
                f"samples per second: define batch_size(batch) on {loop.module_name}"
            )
        return size or 0

    def _timed(self, batches: Iterable[T]) -> Iterator[T]:
        reading = iter(batches)
        while True:
            begin = perf_counter()
            try:
                batch = next(reading)
            except StopIteration:
                return
            self._waited = perf_counter() - begin
            yield batch

    def _clear(self, step: int) -> None:
        self._batches: deque[tuple[float, float, int, int]] = deque(maxlen=self.window)
        self._step, self._counts = step, True
        self._end = self._waited = self._aside = 0.0
