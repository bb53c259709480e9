"""Resume from a checkpoint as if the run had never stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.limits import allowance
from lightloop_plugins.checkpoint.keys import DIRECTORY, HELD, READING, RESUME, RESUMED, Resumption
from lightloop_plugins.checkpoint.state.loader import Resumed, restore_evaluation
from lightloop_plugins.checkpoint.state.random_state import set_global
from lightloop_plugins.checkpoint.state.reading import Reading
from lightloop_plugins.checkpoint.state.record import check_same_run, finished
from lightloop_plugins.checkpoint.state.run import Restoration
from lightloop_plugins.checkpoint.storage.find import Found, load_newest, load_one
from lightloop_plugins.checkpoint.storage.folder import FOLDER, Folder
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.checkpoint.storage.remote import folder_in, folder_of
from lightloop_plugins.checkpoint.weights.chosen import begin_with, load_for_evaluation
from lightloop_plugins.checkpoint.weights.load import folder_at, load_path
from lightloop_plugins.run_dir import RUN_DIR, RUN_FOLDERS, RUN_HOLD

log = logging.getLogger("lightloop")


class Resume(Plugin):
    """Resume bit-exactly from a checkpoint; in an evaluation, load the weights of one.

    Everything is verified and held against the run first; then it is put back in the order in which the parts depend on
    one another, and once more what a plugin has changed while it got ready. Random numbers come last.
    """

    name = "resume"
    tags = ("saves",)
    after = ("checkpoint", "run_dir", "accelerator", "strategy")
    default = True
    transient = ("_fitted", "_asked", "_held", "_restoration")

    place: str | os.PathLike[str] | None = option(
        None,
        "Go on from a checkpoint: its path, a folder of them, or 'auto' for the newest of this experiment, if there is one; "
        "given to an evaluation, whose weights to take: 'best' as well.",
        flag="resume",
        aliases=("resume_from_checkpoint", "ckpt_path"),
    )
    strict: bool = option(
        False, "Refuse to resume if plugins or the environment differ, instead of warning.", flag="resume_strict"
    )

    def validate(self) -> None:
        if self.place is not None and not os.fspath(self.place):
            raise self.invalid("place", "the path of a checkpoint or of a folder of them, or 'auto'")
        self._fitted = False
        self._forget()

    def _forget(self) -> None:
        self._asked: str | None = None
        self._held = False
        self._restoration: Restoration | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._forget()
        self._asked = loop.stash.get(RESUME) if self.place is None else os.fspath(self.place)
        if self.place is not None and RESUME in loop.stash:
            del loop.stash[RESUME]
        if loop.stage == "fit":
            for plugin in loop.trainer.plugins:
                if isinstance(plugin, Resume):
                    plugin._fitted = True
        elif self.place is not None and not self._is_for_fits(loop):
            what = load_for_evaluation(loop.module, self.place, self._places(loop))
            log.info("evaluated are the weights of %s", what)
        if loop.stage != "fit" or self._asked is None:
            loop.opt_out(self)
        elif loop.world.is_main:
            self._held = self._hold(loop)

    def _hold(self, loop: Loop) -> bool:
        """Whether this process alone writes where the run is resumed from; where that is its own run, it takes the right."""
        if self._asked == "auto":
            folder = next((folder for folder in self._places(loop) if folder.names()), None)
        else:
            there = None if str(self._asked).endswith(".safetensors") else folder_at(str(self._asked))
            folder = None if there is None else there[0]
        if not isinstance(folder, LocalFolder):
            return False
        if loop.stash.get(HELD) == str(folder.path):
            return True
        hold, of_run = loop.stash.get(RUN_HOLD), folder.path.name == FOLDER and not folder.path.is_symlink()
        return hold is not None and of_run and hold(folder.path.parent)

    def _is_for_fits(self, loop: Loop) -> bool:
        """Whether the option is none of an evaluation: a Trainer's own "auto", and its path once it has had a fit."""
        own = [plugin for plugin in loop.trainer.plugins if isinstance(plugin, Resume) and plugin.place == self.place]
        for_fits = self.place == "auto" or any(plugin._fitted for plugin in own)
        return bool(own) and for_fits and self.place != "best"

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        found = self._find(loop)
        weights_alone = begin_with(loop.module, str(self._asked), found, self.strict, loop.world.is_main)
        if found is None or weights_alone:
            yield
            return
        what = found.folder.describe(found.name)
        check_same_run(loop, what, found.manifest.body, self.strict)
        self._restoration = Restoration(loop, found.state, what)
        self._restoration.apply()
        yield  # plugins get ready for a fit that begins; what they were is put back after
        self._restoration.finish()
        loop.stash[RESUMED] = Resumption(found, self._asked == "auto")
        if isinstance(found.folder, LocalFolder) and found.folder.path.name == FOLDER and self._held:
            loop.stash[RUN_DIR] = found.folder.path.parent
        log.info("resumed from %s: epoch %d, batch %d, step %d", what, loop.epoch, loop.batch_idx, loop.global_step)

    def _find(self, loop: Loop) -> Found | None:
        found = self._load(loop) if loop.world.is_main else None
        if loop.world.size > 1:
            chosen = loop.world.broadcast(None if found is None else (found.folder.place, found.name))
            if chosen is not None and found is None:
                found = load_one(folder_of(chosen[0]), chosen[1], allowance(loop.module), "unread")
        return found

    def _load(self, loop: Loop) -> Found | None:
        if self._asked == "best":
            raise CheckpointError(
                "resume='best' is for evaluation, test(module, data, resume='best'): training goes on from a path, or from "
                "'auto', which is the newest checkpoint"
            )
        if str(self._asked).endswith(".safetensors"):
            return None  # weights alone
        if self._asked != "auto":
            return load_path(str(self._asked), self._held, "verified", allowance(loop.module))
        for folder in self._places(loop):
            if (found := load_newest(folder, allowance(loop.module), self._held, "verified")) is not None:
                return found
        log.info("resume='auto': there is no checkpoint yet, training begins")
        return None

    def _places(self, loop: Loop) -> list[Folder]:
        """The folders with checkpoints of this experiment, the newest first."""
        if (directory := loop.stash.get(DIRECTORY)) is not None:
            return [folder_of(directory)]
        return [folder_in(path) for path in loop.stash.get(RUN_FOLDERS, [])]

    @hookimpl(wrapper=True)
    def read_batches(self, loop: Loop) -> Generator[None, Any, Any]:
        restoration, self._restoration, loader = self._restoration, None, loop.train_loader
        if restoration is None:
            return (yield)
        rank = restoration.rank
        restore_evaluation(loop, rank["loader"])
        reading = loop.stash[READING] if READING in loop.stash else Reading(loader)
        loop.train_loader = Resumed(reading, loop.batch_idx, rank["loader"], rank["random"], restoration.what)
        try:
            return (yield)
        finally:
            loop.train_loader = loader

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if self._restoration is None or loop.status == "failed":
            return
        set_global(self._restoration.rank["random"])  # there was nothing left to train
        if loop.status != "interrupted" and loop.world.is_main:
            log.warning("%s", finished(loop, str(self._asked)))

    @hookimpl
    def teardown(self) -> None:
        self._forget()
