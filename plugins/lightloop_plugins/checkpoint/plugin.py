"""Save the run now and then, and go on from what was saved."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Generator, Mapping
from typing import Any, Literal

from lightloop import Key, Loop, Plugin, hookimpl, option
from lightloop_plugins._sharding import SHARDING
from lightloop_plugins.checkpoint.chosen import begin_with, load_for_evaluation
from lightloop_plugins.checkpoint.content import Restoration, ready, saver_for, take
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.find import Found, identity, load_newest, load_one
from lightloop_plugins.checkpoint.local import LocalFolder
from lightloop_plugins.checkpoint.positions import Resumed, epoch_start, innermost, kind_of
from lightloop_plugins.checkpoint.random_state import set_global
from lightloop_plugins.checkpoint.record import check_same_run, describe_plugins, describe_run, finished
from lightloop_plugins.checkpoint.remote import folder_of
from lightloop_plugins.checkpoint.saver import Saver
from lightloop_plugins.checkpoint.storage import EXCEPTION, PREFIX, Content
from lightloop_plugins.checkpoint.trigger import Rhythm, Trigger
from lightloop_plugins.checkpoint.weights import FOLDER, load_module, load_path, take_hyperparameters
from lightloop_plugins.run_dir import RUN_DIR, RUN_FOLDERS

log = logging.getLogger("lightloop")
PATIENCE = 120.0
"""How many seconds a rank that saves waits for the others, which were all at this place just now."""

RESUME: Key[str] = Key("checkpoint.resume")
"""From what to go on where the user has not said; whoever knows sets it in its setup, before the plugin ``checkpoint``. It is
gone afterwards where the user has."""


class Checkpoint(Plugin):
    """Save everything that the run needs to go on to the bit, at boundaries between batches; resume from it.

    A checkpoint is a directory ``step-<steps>-batch-<batches>`` that appears whole or not at all and is never changed;
    the newest is the one with the highest numbers that verifies. Saved is in the rhythm of ``save_every``, when the
    monitored metric improves, when training is stopped or interrupted, and at its end.
    """

    name = "checkpoint"
    after = ("run_dir", "accelerator", "strategy")
    requires = ("run_dir",)
    default = True

    enabled: bool = option(
        True, "Save checkpoints.", flag="enable_checkpointing", switch=True, aliases=("checkpoint_callback",)
    )
    directory: str | os.PathLike[str] | None = option(
        None,
        "Where checkpoints are kept: a path or a URL that fsspec knows; by default 'checkpoints' in the run's directory.",
        flag="checkpoint_dir",
    )
    every: Rhythm = option(
        "1 epoch",
        "When to save: so many steps, '2 epochs', '500 batches', '15 min'; None saves at the end alone.",
        flag="save_every",
    )
    monitor: str | None = option(
        None, "The metric that ranks checkpoints; one is saved when it improves.", flag="monitor"
    )
    mode: Literal["min", "max"] = option(
        "min", "Whether the monitored metric is better low or high.", flag="monitor_mode"
    )
    top_k: int = option(1, "Keep so many of the best by the monitored metric; -1 keeps all.", flag="save_top_k")
    last: int = option(2, "Keep so many of the newest, from 1.", flag="save_last")
    weights_only: bool = option(False, "Save the module's weights and nothing else.", flag="save_weights_only")
    on_exception: bool = option(
        False, "Save when an error ends the run; resumed from it, a run is not exact.", flag="save_on_exception"
    )
    threaded: bool = option(False, "Write on a thread while training goes on.", flag="async_save")
    on_save_error: Literal["raise", "warn"] = option(
        "raise",
        "Whether a save that fails ends the run, or three in a row may fail with a warning.",
        flag="on_save_error",
    )
    resume: str | os.PathLike[str] | None = option(
        None,
        "Go on from a checkpoint: its path, a folder of them, or 'auto' for the newest of this experiment, if there is one; "
        "given to an evaluation, whose weights to take: 'best' as well.",
        flag="resume",
        aliases=("resume_from_checkpoint", "ckpt_path"),
    )
    strict: bool = option(
        False, "Refuse to resume where plugins or the environment differ, instead of a warning.", flag="resume_strict"
    )

    def check(self) -> None:
        if self.last < 1:
            raise self.refuse("last", "a whole number from 1")
        if self.top_k < -1:
            raise self.refuse("top_k", "a whole number from 0, or -1 for all")
        if str(self.resume) == "best" and not self.enabled:
            raise self.refuse("resume", "a path where enable_checkpointing=False saves nothing that could be the best")
        self._fitted = False
        self._forget()

    def _forget(self) -> None:
        self._saver: Saver | None = None
        self._about: dict[str, Any] = {}
        self._found: Found | None = None
        self._restoration: Restoration | None = None
        self._resume: str | None = None
        self._start: Any = None
        self._trigger = Trigger(self.every, self.monitor, self.mode)
        self._place: tuple[int, int] | None = None
        self.last_path: str | None = None

    # ------------------------------------------------------------------------------------------------------ resuming

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._forget()
        self._resume = loop.stash.get(RESUME) if self.resume is None else str(self.resume)
        if self.resume is not None and RESUME in loop.stash:
            del loop.stash[RESUME]
        for plugin in loop.trainer.plugins if loop.stage == "fit" else ():
            if isinstance(plugin, Checkpoint):
                plugin._fitted = True
        if loop.stage != "fit":
            loop.leave_out(self)
            if (place := self._asked(loop)) is not None:
                log.info("evaluated are the weights of %s", load_for_evaluation(loop.module, place, self._places(loop)))

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        self._trigger.start(loop)
        if self._resume is not None:
            self._found = self._find(loop)
            if begin_with(loop.module, self._resume, self._found, self.strict, loop.world.is_main):
                self._found = None
        if self._found is None:
            yield
            return
        what = self._found.folder.describe(self._found.name)
        check_same_run(loop, what, self._found.manifest.body, self.strict)
        self._restoration = Restoration(loop, self._found.state, what)
        self._restoration.apply()
        yield  # plugins get ready for a fit that begins; what they were is put back after
        self._restoration.finish()
        self._place = (loop.global_step, loop.total_batches)
        if isinstance(self._found.folder, LocalFolder) and self._found.folder.path.name == FOLDER:
            loop.stash[RUN_DIR] = self._found.folder.path.parent
        log.info("resumed from %s: epoch %d, batch %d, step %d", what, loop.epoch, loop.batch_idx, loop.global_step)

    def _find(self, loop: Loop) -> Found | None:
        found = self._load(loop) if loop.world.is_main else None
        if loop.world.size > 1:
            chosen = loop.world.broadcast(None if found is None else (found.folder.place, found.name))
            if chosen is not None and found is None:
                found = load_one(folder_of(chosen[0]), chosen[1], shards="unread")
        return found

    def _load(self, loop: Loop) -> Found | None:
        if self._resume == "best":
            raise CheckpointError(
                "resume='best' is for evaluation, test(module, data, resume='best'): training goes on from a path, or from "
                "'auto', which is the newest checkpoint"
            )
        if str(self._resume).endswith(".safetensors"):
            return None  # weights alone
        if self._resume != "auto":
            return load_path(str(self._resume), shards="verified")
        for place in self._places(loop):
            if (found := load_newest(folder_of(place), shards="verified")) is not None:
                return found
        log.info("resume='auto': there is no checkpoint yet, training begins")
        return None

    def _places(self, loop: Loop) -> list[str]:
        """The folders with checkpoints of this experiment, the newest first."""
        if self.directory is not None:
            return [os.fspath(self.directory)]
        return [str(path / FOLDER) for path in loop.stash[RUN_FOLDERS]]

    def _asked(self, loop: Loop) -> str | os.PathLike[str] | None:
        """Whose weights to evaluate; what was given to a Trainer, "auto" or a path, is for its fits once it has had one."""
        own = [
            plugin for plugin in loop.trainer.plugins if isinstance(plugin, Checkpoint) and plugin.resume == self.resume
        ]
        for_fits = self.resume == "auto" or any(plugin._fitted for plugin in own)
        return None if own and for_fits and self.resume != "best" else self.resume

    @hookimpl(wrapper=True)
    def read_batches(self, loop: Loop) -> Generator[None, Any, Any]:
        restoration, self._restoration, loader = self._restoration, None, loop.train_loader
        if restoration is None:
            self._start = None if kind_of(innermost(loader)) == "itself" else epoch_start(loader)
            return (yield)
        rank = restoration.rank
        self._start = rank["loader"].get("start")
        if not loop.batch_idx and kind_of(innermost(loader)) != "itself":
            self._start = {"global": rank["random"], "generators": rank["loader"].get("now", {})}
        loop.train_loader = Resumed(loader, loop.batch_idx, rank["loader"], rank["random"])
        try:
            return (yield)
        finally:
            loop.train_loader = loader

    # -------------------------------------------------------------------------------------------------------- saving

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        split = SHARDING in loop.stash  # then every rank writes
        if self._saver is not None or not self.enabled or not (loop.world.is_main or split):
            return
        place = os.fspath(self.directory if self.directory is not None else loop.stash[RUN_DIR] / FOLDER)
        folder = folder_of(loop.world.broadcast(place) if split else place)
        same = self._found is not None and self._found.folder.place == folder.place
        asked = same and self._resume != "auto"
        saver = saver_for(loop)(
            folder,
            identity(self._found, folder.place, self._resume == "auto"),
            self.last,
            self.top_k,
            self.monitor,
            self.mode,
            self.on_save_error == "warn",
            self.threaded,
            self._found.name if asked and self._found else None,
        )
        saver.open()
        self._saver, self._about = saver, describe_plugins(loop)

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        self._trigger.after_batch(loop)

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        self._trigger.after_epoch(loop)

    @hookimpl
    def after_evaluation(self) -> None:
        self._trigger.after_evaluation()

    @hookimpl
    def between_batches(self, loop: Loop) -> None:
        if self._trigger.due(loop) and self.enabled and (loop.global_step, loop.total_batches) != self._place:
            self._save(loop)

    def save_next(self) -> None:
        """Save at the next boundary between batches, whatever the rhythm; every rank must ask."""
        self._trigger.ask()

    def _save(self, loop: Loop, exact: bool = True) -> None:
        loop.world.barrier(within=PATIENCE)
        self._place = (loop.global_step, loop.total_batches)
        failure: Exception | None = None
        content = ready(loop, self._content(loop))
        if self._saver is not None:
            try:
                self.last_path = self._write(loop, self._saver, content, exact)
            except Exception as error:
                failure = error
        if loop.world.size > 1:
            (said,) = loop.world.agree(None if failure is None else str(failure))
            if said is not None and failure is None:
                failure = CheckpointError(said)
        if failure is not None:
            raise failure

    def _content(self, loop: Loop) -> dict[str, Any]:
        if self.weights_only:
            state: dict[str, Any] = {"module": {"weights": dict(loop.module.state_dict())}}
        else:
            state = take(loop, self._start)
        return {**state, "hparams": take_hyperparameters(loop.module)}

    def _write(self, loop: Loop, saver: Saver, content: Content, exact: bool) -> str | None:
        body = {
            "step": loop.global_step,
            "batch": loop.total_batches,
            "content": "weights" if self.weights_only else "run",
            "exact": exact,
            **self._about,
            **describe_run(loop),
        }
        value = body["metrics"].get(self.monitor) if self.monitor else None
        if self.monitor and self.monitor not in body["metrics"] and not loop.batch_idx:
            warnings.warn(
                f"monitor={self.monitor!r} names no metric that has been logged; there are "
                f"{', '.join(body['metrics']) or 'none'}. The checkpoint ranks last",
                stacklevel=3,
            )
        name = saver.save(content, body, self._trigger.score(value), PREFIX if exact else EXCEPTION)
        return f"{saver.folder.place}/{name}" if loop.world.is_main else None

    # --------------------------------------------------------------------------------------------------- ways out

    @hookimpl
    def on_error(self, loop: Loop, error: BaseException) -> None:
        if (
            self.on_exception
            and self._saver is not None
            and loop.world.size == 1
            and not isinstance(error, CheckpointError)
        ):
            self._save(loop, exact=False)

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if self._restoration is not None and loop.status != "failed":  # there was nothing left to train
            set_global(self._restoration.rank["random"])
            if loop.status != "interrupted" and loop.world.is_main:
                log.warning("%s", finished(loop, str(self._resume)))
            if self._found is not None and self._resume == "auto" and self.enabled and loop.world.is_main:
                with contextlib.suppress(CheckpointError):  # another one writes there, or nobody may
                    self._found.folder.open(self._found.manifest.run)  # what a writer that died has left goes
                    self._found.folder.close()
        if self._saver is not None:
            self._saver.wait()
            if self._saver.failures and self.on_save_error == "warn":  # otherwise it has been raised
                raise CheckpointError(
                    f"the last save failed, and the end of the run is not in {self._saver.folder.place}"
                )

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        saver, self._saver = self._saver, None
        self._found = self._restoration = self._start = None
        if saver is not None:
            self.best_path = None if saver.best is None else f"{saver.folder.place}/{saver.best.name}"
            saver.close()

    load_module = staticmethod(load_module)  # what Module.load_from_checkpoint looks for

    def state_dict(self) -> dict[str, Any]:
        return self._trigger.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._trigger.load_state_dict(state)
