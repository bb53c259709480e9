"""Save all that a run needs to go on: when (trigger), what (content), where (storage), and for how long (retention)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import warn
from lightloop_plugins._sharding import SHARDING
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.hooks import CheckpointHooks
from lightloop_plugins.checkpoint.keys import DIRECTORY, HELD, READING, RESUMED
from lightloop_plugins.checkpoint.saver import Saver, new_run
from lightloop_plugins.checkpoint.state.inputs import describe_inputs
from lightloop_plugins.checkpoint.state.partial import Base, LeftOut, described, weights_without
from lightloop_plugins.checkpoint.state.reading import Reading
from lightloop_plugins.checkpoint.state.record import describe_plugins, describe_run
from lightloop_plugins.checkpoint.state.run import ready, saver_for, take
from lightloop_plugins.checkpoint.storage.folder import EXCEPTION, PREFIX, Content, Folder
from lightloop_plugins.checkpoint.storage.remote import absolute, folder_in, folder_of
from lightloop_plugins.checkpoint.trigger import Rhythm, Trigger
from lightloop_plugins.checkpoint.weights.load import load_module, take_hyperparameters
from lightloop_plugins.run_dir import RUN_DIR

PATIENCE = 120.0
"""How many seconds a rank that saves waits for the others, which were all at this place just now."""


class Checkpoint(Plugin):
    """Save everything that a run needs to resume bit-exactly, at boundaries between batches.

    A checkpoint is a directory ``step-<steps>-batch-<batches>`` that appears whole or not at all and is never changed;
    the newest is the one with the highest numbers that verifies. Saved is in the rhythm of ``save_every``, when the
    monitored metric improves, when training is stopped or interrupted, and at its end.
    """

    name = "checkpoint"
    tags = ("saves",)
    after = ("run_dir", "accelerator", "strategy")
    requires: ClassVar[tuple[str, ...]] = ("run_dir",)
    default = True
    hookspecs = (CheckpointHooks,)
    state = ("_trigger",)
    transient = (
        "requires",
        "_saver",
        "_folder",
        "_about",
        "_inputs",
        "_reading",
        "_place",
        "_base",
        "last_path",
        "best_path",
    )

    enabled: bool = option(
        True,
        "Save checkpoints.",
        flag="enable_checkpointing",
        switch=True,
        aliases=("checkpoint_callback",),
        neutral=True,
    )
    directory: str | os.PathLike[str] | None = option(
        None,
        "Where checkpoints are kept: a path or a URL that fsspec knows; by default 'checkpoints' in the run's directory.",
        flag="checkpoint_dir",
        neutral=True,
    )
    every: Rhythm = option(
        "1 epoch",
        "How often to save: a number of steps, '2 epochs', '500 batches', '15 min'; None saves only at the end.",
        flag="save_every",
        neutral=True,
    )
    monitor: str | None = option(
        None, "Metric that ranks checkpoints; a checkpoint is saved whenever it improves.", flag="monitor"
    )
    mode: Literal["min", "max"] = option(
        "min", "Whether a lower ('min') or higher ('max') value of the monitored metric is better.", flag="monitor_mode"
    )
    strict: bool = option(
        False,
        "Raise an error if the monitored metric is never logged, instead of warning once.",
        flag="monitor_strict",
        neutral=True,
        enables=False,
    )
    top_k: int = option(
        1,
        "Number of best checkpoints, by the monitored metric, to keep; -1 keeps all.",
        flag="save_top_k",
        neutral=True,
    )
    last: int = option(2, "Number of newest checkpoints to keep, at least 1.", flag="save_last", neutral=True)
    weights_only: bool = option(False, "Save only the module's weights.", flag="save_weights_only", neutral=True)
    on_exception: bool = option(
        False,
        "Save a checkpoint when the run fails with an error; resuming from it is not exact.",
        flag="save_on_exception",
        neutral=True,
    )
    threaded: bool = option(
        False, "Write checkpoints on a background thread while training continues.", flag="async_save", neutral=True
    )
    on_save_error: Literal["raise", "warn"] = option(
        "raise",
        "What to do if a save fails: end the run, or warn and tolerate three failures in a row.",
        flag="on_save_error",
        neutral=True,
    )

    def validate(self) -> None:
        if self.last < 1:
            raise self.invalid("last", "a whole number from 1")
        if self.top_k < -1:
            raise self.invalid("top_k", "a whole number from 0, or -1 for all")
        if not self.enabled:
            self.requires = ()  # type: ignore[misc]  # who saves nothing needs no directory
        self._forget()

    def _forget(self) -> None:
        self._saver: Saver | None = None
        self._folder: Folder | None = None
        self._about: dict[str, Any] = {}
        self._inputs: dict[str, str] = {}
        self._reading: Reading | None = None
        self._trigger = Trigger(self.every, self.monitor, self.mode)
        self._place: tuple[int, int, int] | None = None
        self._base = Base()
        self.last_path: str | None = None
        self.best_path: str | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage == "fit":  # what a fit has saved is known through the evaluations that follow
            self._forget()
        if self.directory is not None:
            loop.stash[DIRECTORY] = absolute(self.directory)
        if loop.stage != "fit" or not self.enabled:
            loop.opt_out(self)
        elif self.directory is not None and loop.world.is_main:
            self._folder = folder_of(absolute(self.directory))
            self._folder.hold()  # before anything is opened, of the run or in it
            loop.stash[HELD] = self._folder.place

    @hookimpl(specname="before_fit", wrapper=True)
    def note_inputs(self, loop: Loop) -> Generator[None, None, None]:
        self._inputs = describe_inputs(loop)  # before a resumed run puts anything back
        yield

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._trigger.start(loop)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        if self._place is None:
            self._place = _place_of(loop) if RESUMED in loop.stash else (-1, -1, -1)
            self._base.left_out(loop)  # as it is now: what changes later would be lost
            split = SHARDING in loop.stash  # then every rank writes
            if loop.world.is_main or split:
                self._begin(loop, split)

    def _begin(self, loop: Loop, split: bool) -> None:
        own = folder_in(loop.stash[RUN_DIR]) if self.directory is None else folder_of(absolute(self.directory))
        folder = self._folder or own
        if split:
            place = loop.world.broadcast(folder.place)
            folder = folder if loop.world.is_main else folder_of(place)
        self._folder = folder
        resumed = loop.stash.get(RESUMED)
        saver = saver_for(loop)(
            folder,
            new_run() if resumed is None else resumed.run_in(folder.place),
            self.last,
            self.top_k,
            self.monitor,
            self.mode,
            self.on_save_error == "warn",
            self.threaded,
            None if resumed is None else resumed.named_in(folder.place),
            "weights" if self.weights_only else "run",
        )
        saver.open()
        self._saver, self._about = saver, {**describe_plugins(loop), "inputs": self._inputs}
        if resumed is not None and not resumed.is_in(folder.place):
            self._about["resumed_from"] = f"{absolute(resumed.found.folder.place)}/{resumed.found.name}"

    @hookimpl(wrapper=True)
    def read_batches(self, loop: Loop) -> Generator[None, Any, Any]:
        loader = loop.train_loader
        self._reading = reading = Reading(loader)
        loop.stash[READING] = reading
        if reading.watched:
            loop.train_loader = reading
        try:
            return (yield)
        finally:
            loop.train_loader = loader
            del loop.stash[READING]

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        self._trigger.after_batch(loop)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        self._trigger.after_epoch(loop)

    @hookimpl
    def after_evaluation(self, loop: Loop) -> None:
        if loop.evaluation is not None and not loop.evaluation.sanity:
            self._trigger.after_evaluation()

    @hookimpl
    def between_batches(self, loop: Loop) -> None:
        if self._trigger.due(loop) and _place_of(loop) != self._place:
            self._save(loop)

    def save_next(self) -> None:
        """Save at the next boundary between batches, whatever the rhythm; every rank must ask."""
        self._trigger.ask()

    def _save(self, loop: Loop, exact: bool = True) -> None:
        loop.world.barrier(within=PATIENCE)
        self._place = _place_of(loop)
        failure: Exception | None = None
        try:
            loop.hook.before_save(loop=loop)  # type: ignore[attr-defined]
            left_out = self._base.left_out(loop)
            content = ready(loop, self._content(loop, left_out))
            if self._saver is not None:
                try:
                    self.last_path = self._write(loop, self._saver, content, exact, left_out)
                except Exception as error:
                    failure = error
        except CheckpointError as error:  # something in the run cannot be stored
            if self._saver is None or loop.world.size > 1:
                raise  # the ranks have not met yet
            self._saver.failed(error)
        finally:
            loop.hook.after_save(loop=loop)  # type: ignore[attr-defined]
        self.best_path = self._best()
        if loop.world.size > 1:
            said, self.last_path, self.best_path = loop.world.agree(
                None if failure is None else str(failure), self.last_path, self.best_path
            )
            if said is not None and failure is None:
                failure = CheckpointError(said)
        if failure is not None:
            raise failure

    def _content(self, loop: Loop, left_out: LeftOut) -> dict[str, Any]:
        if self.weights_only:
            state: dict[str, Any] = {"module": weights_without(loop.module, left_out)}
        else:
            state = take(loop, left_out, self._reading)
        return {**state, **take_hyperparameters(loop.module)}

    def _write(self, loop: Loop, saver: Saver, content: Content, exact: bool, left_out: LeftOut) -> str | None:
        body = {
            "step": loop.global_step,
            "batch": loop.total_batches,
            "content": "weights" if self.weights_only else "run",
            "exact": exact,
            "ranked_by": {"metric": self.monitor, "mode": self.mode} if self.monitor else None,
            **self._about,
            **describe_run(loop),
            **described(left_out),
        }
        value = body["metrics"].get(self.monitor) if self.monitor else None
        if (missing := self._trigger.missing(loop)) is not None:
            if self.strict:
                raise CheckpointError(f"{missing}; monitor_strict=False ranks its checkpoints last")
            warn(f"{missing}. Its checkpoints rank last")
        name = saver.save(content, body, self._trigger.score(value), PREFIX if exact else EXCEPTION)
        return f"{saver.folder.place}/{name}" if loop.world.is_main else None

    @hookimpl
    def on_error(self, loop: Loop, error: BaseException) -> None:
        if (
            self.on_exception
            and self._saver is not None
            and loop.world.size == 1
            and not isinstance(error, CheckpointError)
        ):
            self._save(loop, exact=False)

    def _best(self) -> str | None:
        """The path of the best checkpoint; only who writes has it by itself."""
        best = None if self._saver is None else self._saver.best
        return self.best_path if self._saver is None or best is None else f"{self._saver.folder.place}/{best.name}"

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if self._saver is None:
            self._clear(loop)
        else:
            self._close(self._saver)
        if loop.status != "failed":
            self.best_path = loop.world.broadcast(self._best())  # a thread may have written it just now

    def _close(self, saver: Saver) -> None:
        saver.wait()
        if saver.failures and self.on_save_error == "warn":  # otherwise it has been raised
            raise CheckpointError(f"the last save failed, and the end of the run is not in {saver.folder.place}")

    def _clear(self, loop: Loop) -> None:
        """Where a run had been over and nothing was trained: remove what a writer that died has left."""
        resumed = loop.stash.get(RESUMED)
        if resumed is not None and resumed.auto and loop.world.is_main and loop.status != "failed":
            own = self._folder  # it has the lock
            folder = own if own is not None and resumed.is_in(own.place) else resumed.found.folder
            with contextlib.suppress(CheckpointError):  # another one writes there, or nobody may
                folder.open(resumed.found.manifest.run)
                folder.close()

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        saver, self._saver, folder, self._folder = self._saver, None, self._folder, None
        self._reading, self._base = None, Base()
        if saver is not None:
            self.best_path = None if saver.best is None else f"{saver.folder.place}/{saver.best.name}"
            saver.close()
        elif folder is not None:
            folder.close()

    load_module = staticmethod(load_module)  # what Module.load_from_checkpoint looks for

    def state_dict(self) -> dict[str, Any]:
        return self._trigger.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._trigger.load_state_dict(state)


def _place_of(loop: Loop) -> tuple[int, int, int]:
    """What differs between two states; data without a length ends after a boundary that might have been inside its epoch."""
    return loop.global_step, loop.total_batches, loop.epoch
