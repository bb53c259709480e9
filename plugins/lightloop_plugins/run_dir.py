"""Give each run a directory for its files: metrics, checkpoints, traces."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from lightloop import Key, Loop, Plugin, hookimpl, option
from lightloop.toolkit import BusyError, Writer, make_directory

RUN_DIR: Key[Path] = Key("run_dir.path")
"""The directory of the run, the same on every rank; in a fit from the first before_epoch on, otherwise from
before_evaluation on. A plugin that needs it says ``requires = ("run_dir",)``; where no plugin does, none is made. No other
process writes in it. A plugin that knows which run is resumed sets it before."""
RUN_HOLD: Key[Callable[[Path], bool]] = Key("run_dir.hold")
"""There from setup on where there will be a directory: takes the right to write in that of a run that is gone on with, so
that the plugin that reads it may change it; False where this run goes on in another. It is called on the main rank."""
RUN_VERSION: Key[str] = Key("run_dir.version")
"""The run's own name where the user has given none; whoever knows sets it in its setup, before the plugin ``run_dir``."""
RUN_FOLDERS: Key[list[Path]] = Key("run_dir.folders")
"""The directories of the runs of this experiment that are there when a fit begins, the newest first."""
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system answers where one may not write."""
log = logging.getLogger("lightloop")


class RunDir(Plugin):
    """Create ``<root>/<name>/version_<N>`` with the first free N; a resumed run continues in its old directory.

    One run at a time writes in a directory: a second one, of whatever process, is refused before it has changed anything.
    An evaluation uses the directory of the fit that the same trainer has made before, if there was one. A run that is
    resumed from a directory in which it may not write gets a new one. Without ``root``, the environment's
    ``LIGHTLOOP_RUNS`` is taken, or ``runs``.
    """

    name = "run_dir"
    tags = ("writes",)
    after = ("accelerator", "strategy")
    default = True
    exposes: ClassVar[Mapping[str, str]] = {"run_dir": "path"}
    state = ("path",)
    transient = ("_resumed", "_writer", "_parent")

    root: str | os.PathLike[str] | None = option(
        None,
        "Root folder for the files of all runs.",
        flag="default_root_dir",
        aliases=("default_save_path",),
        enables=False,
        neutral=True,
    )
    run_name: str | None = option(
        None,
        "Name of the experiment; None uses the name of the module's class.",
        flag="run_name",
        enables=False,
        neutral=True,
    )
    version: int | str | None = option(
        None, "Name of the run; if it exists already, the run continues in it. By default a new version_N.",
        flag="run_version", enables=False, neutral=True)  # fmt: skip

    def validate(self) -> None:
        for field in ("run_name", "version"):
            if (value := getattr(self, field)) is not None and not plain(str(value)).strip("."):
                raise self.invalid(field, "a name that a folder can have")
        self._resumed: str | None = None
        self._writer: Writer | None = None
        self._parent = Path()
        self.path: Path | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage == "fit":  # an evaluation by the same trainer belongs to its last fit
            self._resumed = self.path = None
        root = os.path.abspath(self.root or os.environ.get("LIGHTLOOP_RUNS") or "runs")  # a script may go elsewhere
        self._parent = Path(root) / plain(self.run_name or loop.module_name)
        asking = [plugin for plugin in loop.plugins if self.name in plugin.requires]
        loop.stash[RUN_FOLDERS] = self._folders(loop)
        if not any(loop.stage == "fit" or "logger" in plugin.tags for plugin in asking):
            loop.opt_out(self)
            return
        loop.stash[RUN_HOLD] = self._hold_earlier
        if loop.stage == "fit" and loop.world.is_main and (named := self._named(loop)) and named.is_dir():
            self._hold(named)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:  # not earlier: what is resumed is known when the epoch begins
        if self.path is None:
            self._claim(loop)

    @hookimpl
    def before_evaluation(self, loop: Loop) -> None:
        if loop.stage != "fit":
            self._claim(loop)

    @hookimpl
    def teardown(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.release()

    def state_dict(self) -> dict[str, Any]:
        return {"path": None if self.path is None else str(self.path)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._resumed = state["path"]

    def _claim(self, loop: Loop) -> None:
        self.path = loop.stash[RUN_DIR] = loop.world.broadcast(self._choose(loop) if loop.world.is_main else Path())

    def _choose(self, loop: Loop) -> Path:
        if self.version is None:
            told = loop.stash.get(RUN_DIR) or self.path
            if told is not None and told.is_dir() and self._hold_earlier(told):
                return told
            # What a checkpoint says is somebody else's word: it may name a run of this experiment, and nothing else.
            resumed = None if self._resumed is None else Path(os.path.abspath(self._resumed))
            if resumed in self._folders(loop) and self._hold_earlier(resumed):
                return resumed
        self._make(self._parent)
        if (path := self._named(loop)) is not None:
            self._make(path)
        else:
            path = self._new()
        self._hold(path)
        return path

    def _new(self) -> Path:
        number = 1 + max((number for number, _ in _versions(self._parent)), default=-1)
        while True:
            path = self._parent / f"version_{number}"
            try:
                make_directory(path, exist_ok=False)
            except FileExistsError:  # another run was faster
                number += 1
            else:
                return path

    def _make(self, path: Path) -> None:
        try:
            make_directory(path)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"the run has no directory, for {path} cannot be made ({error.strerror}): give another default_root_dir, or "
                "enable_checkpointing=False and logger=False to leave nothing behind",
            ) from error

    def _hold_earlier(self, path: Path) -> bool:
        if self.version is not None:
            return self._writer is not None and os.path.samefile(path, self._writer.path)
        try:
            self._hold(path)
        except OSError as error:
            if error.errno not in CLOSED:
                raise
            log.warning("%s cannot be written to (%s): the run goes on in a directory of its own", path, error.strerror)
            return False
        return True

    def _hold(self, path: Path) -> None:
        """Become the one that writes there."""
        if self._writer is not None and os.path.samefile(path, self._writer.path):
            return
        if path.parent == self._parent and self._parent.is_symlink():
            raise OSError(f"{self._parent} is a link: give what it leads to by default_root_dir and run_name")
        try:
            writer = Writer.of(path)
        except BusyError as error:
            raise BusyError(
                f"{error}. Wait for it, stop it, or begin a run of your own: another run_name or run_version, and no resume"
            ) from None
        if self._writer is not None:  # the run is resumed from one that is not of its name
            self._writer.release()
        self._writer = writer

    def _named(self, loop: Loop) -> Path | None:
        version = loop.stash.get(RUN_VERSION) if self.version is None else self.version
        if version is None:
            return None
        return self._parent / (f"version_{version}" if isinstance(version, int) else plain(version))

    def _folders(self, loop: Loop) -> list[Path]:
        if (named := self._named(loop)) is not None:
            return [named] if named.is_dir() else []
        return [path for _, path in sorted(_versions(self._parent), reverse=True)]


def _versions(parent: Path) -> list[tuple[int, Path]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [
            (int(found[1]), path) for path in parent.iterdir() if (found := re.fullmatch(r"version_(\d+)", path.name))
        ]
    return []


def plain(name: str) -> str:
    """``name`` as that of one folder: a slash makes no folder in a folder."""
    return re.sub(r"[^\w.=+-]", "_", name)
