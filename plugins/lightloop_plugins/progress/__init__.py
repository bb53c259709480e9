"""Show the progress of a run in a terminal, in a notebook, or as lines in a log file."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import ClassVar

from lightloop import Evaluation, Loop, Plugin, hookimpl, option
from lightloop.toolkit import fetch, size_of
from lightloop_plugins.progress.tracks import New, Track, choose

try:  # without that plugin, no loss is shown but what the user logs
    from lightloop_plugins.running_loss import RUNNING_LOSS
except ImportError:
    RUNNING_LOSS = None  # type: ignore[assignment]

TITLES = {"validate": "validation", "test": "test", "predict": "prediction"}


class Progress(Plugin):
    """Show a bar for each epoch and one below it for evaluation; without a terminal, a line every few seconds.

    It shows the running loss and what was logged with ``prog_bar=True``; of two with one name, the user's. Numbers are
    read from the device when something is drawn and at no other time.
    """

    name = "progress"
    tags = ("watches",)
    on_failure = "disable"  # a terminal that is closed is no reason to lose the training
    after = ("accelerator", "strategy")
    before = ("validation",)
    default = True
    exposes: ClassVar[Mapping[str, str]] = {"progress_bar_dict": "shown"}
    transient = (
        "shown",
        "_train",
        "_evaluation",
        "_new_track",
        "_due",
        "_evaluation_due",
        "_pause",
        "_began",
        "_evaluated",
    )

    enabled: bool = option(
        True,
        "Show progress.",
        flag="enable_progress_bar",
        switch=True,
        aliases={"show_progress_bar": bool, "progress_bar_refresh_rate": bool},
    )
    interval: float | None = option(
        None, "Seconds between two updates; by default 0.2 for a bar and 10 for lines.", enables=False
    )
    position: int = option(0, "Lines to leave free above the bar.", flag="process_position", enables=False)

    def validate(self) -> None:
        if self.interval is not None and self.interval < 0:
            raise self.invalid("interval", "a number from 0")
        if self.position < 0:
            raise self.invalid("position", "a whole number from 0")
        self.shown: dict[str, float] = {}
        self._train: Track | None = None
        self._evaluation: Track | None = None
        self._new_track: New | None = None
        self._due = self._evaluation_due = self._pause = self._began = 0.0
        self._evaluated = 0

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self.shown, self._train, self._evaluation = {}, None, None
        if loop.world.is_main:
            self._new_track, pause = choose(self.position)
            self._pause = pause if self.interval is None else self.interval
        else:
            loop.opt_out(self)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        self._finish_epoch(loop)
        assert self._new_track is not None
        epochs = getattr(loop.trainer, "max_epochs", None) or -1
        title = f"epoch {loop.epoch + 1}" + (f"/{epochs}" if epochs > 0 else "")
        self._train = self._new_track(title, loop.num_batches, loop.batch_idx, True)
        self._due = monotonic() + self._pause

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if monotonic() >= self._due:
            self._draw(loop, loop.batch_idx + 1)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        assert self._train is not None
        self._train.draw(loop.batch_idx, self.shown, over=True)  # what the epoch comes to is not yet known

    @hookimpl
    def before_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        assert self._new_track is not None
        sizes = [size_of(loader) for loader in evaluation.loaders.values()]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        title = "sanity check" if evaluation.sanity else TITLES[evaluation.stage]
        self._evaluated, self._began = 0, monotonic()
        self._evaluation = self._new_track(title, total, 0, loop.stage != "fit")
        self._evaluation_due = self._began + self._pause

    @hookimpl
    def after_evaluation_batch(self, loop: Loop) -> None:
        self._evaluated += 1
        if monotonic() >= self._evaluation_due and self._evaluation is not None:
            self._evaluation.draw(self._evaluated, {})
            self._evaluation_due = monotonic() + self._pause

    @hookimpl
    def after_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        track, self._evaluation = self._evaluation, None
        if track is None:
            return
        track.draw(self._evaluated, evaluation.metrics, over=True)
        track.close()
        if self._train is not None:
            self._train.rest(monotonic() - self._began)
            if evaluation.metrics and not self._train.over:
                self._draw(loop, self._train.done)

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if loop.status != "failed":
            self._finish_epoch(loop)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._train is not None:
            self._train.close()
        self._train = self._evaluation = self._new_track = None

    def _draw(self, loop: Loop, done: int, over: bool = False) -> None:
        assert self._train is not None
        self.shown = self._values(loop)
        self._train.draw(done, self.shown, over)
        self._due = monotonic() + self._pause

    def _finish_epoch(self, loop: Loop) -> None:
        if self._train is not None:
            self._draw(loop, self._train.done, over=True)
            self._train.close()
        self._train = None

    def _values(self, loop: Loop) -> dict[str, float]:
        """What is shown, fetched from the device together."""
        metrics = loop.metrics
        loss = loop.stash[RUNNING_LOSS]() if RUNNING_LOSS in loop.stash else None
        own = {} if loss is None else {"loss": loss}
        shown = {name: value for name, value in metrics.latest.items() if name in metrics.on_bar}
        shown |= {name: running.value() for name, running in metrics.epoch.items() if name in metrics.on_bar}
        return fetch(own | shown)
