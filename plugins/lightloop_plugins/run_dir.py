"""Give each run a directory of its own for what it leaves behind: metrics, checkpoints, traces."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from lightloop import Key, Loop, Plugin, hookimpl, option

RUN_DIR: Key[Path] = Key("run_dir.path")
"""The directory of the run, the same on every rank; in a fit from the first before_epoch on, otherwise from
before_evaluation on. Whoever needs it says ``requires = ("run_dir",)``; where nobody does, none is made. Whoever knows
which run is gone on with sets it before."""
RUN_VERSION: Key[str] = Key("run_dir.version")
"""The run's own name where the user has given none; whoever knows sets it in its setup, before the plugin ``run_dir``."""
RUN_FOLDERS: Key[list[Path]] = Key("run_dir.folders")
"""The directories of the runs of this experiment that are there when a fit begins, the newest first."""


class RunDir(Plugin):
    """Make ``<root>/<name>/version_<N>``, with the first N that is free; a resumed run goes on in its old one.

    An evaluation uses the directory of the fit that the same trainer has made before, if there was one.
    Without ``root``, the environment's ``LIGHTLOOP_RUNS`` is taken, or ``runs``.
    """

    name = "run_dir"
    after = ("accelerator", "strategy")
    default = True
    offers: ClassVar[Mapping[str, str]] = {"run_dir": "path"}
    state = ("path",)
    transient = ("_resumed",)

    root: str | os.PathLike[str] | None = option(
        None, "Where runs leave their files.", flag="default_root_dir", aliases=("default_save_path",), enables=False
    )
    run_name: str | None = option(
        None,
        "What the runs of an experiment have in common; the module's class if None.",
        flag="run_name",
        enables=False,
    )
    version: int | str | None = option(
        None, "The run's own name; one that is there already is gone on with. By default a new version_N.",
        flag="run_version", enables=False,
    )  # fmt: skip

    def check(self) -> None:
        for field in ("run_name", "version"):
            if (value := getattr(self, field)) is not None and not plain(str(value)).strip("."):
                raise self.refuse(field, "a name that a folder can have")
        self._resumed: str | None = None
        self.path: Path | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage == "fit":  # an evaluation by the same trainer belongs to its last fit
            self._resumed = self.path = None
        asking = [plugin for plugin in loop.plugins if self.name in plugin.requires]
        loop.stash[RUN_FOLDERS] = self._folders(loop)
        if not any(loop.stage == "fit" or "logger" in plugin.tags for plugin in asking):
            loop.leave_out(self)

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:  # not earlier: what is resumed is known when the epoch begins
        if self.path is None:
            self._claim(loop)

    @hookimpl
    def before_evaluation(self, loop: Loop) -> None:
        if loop.stage != "fit":
            self._claim(loop)

    def state_dict(self) -> dict[str, Any]:
        return {"path": None if self.path is None else str(self.path)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._resumed = state["path"]

    def _claim(self, loop: Loop) -> None:
        path = loop.world.broadcast(self._choose(loop) if loop.world.is_main else Path())
        path.mkdir(parents=True, exist_ok=True)
        self.path = loop.stash[RUN_DIR] = path

    def _choose(self, loop: Loop) -> Path:
        parent = self._parent(loop)
        if self.version is None:
            told = loop.stash.get(RUN_DIR) or self.path
            if told is not None and told.is_dir():
                return told
            # What a checkpoint says is somebody else's word: it may name a run of this experiment, and nothing else.
            if self._resumed is not None and Path(self._resumed) in self._folders(loop):
                return Path(self._resumed)
        parent.mkdir(parents=True, exist_ok=True)
        if (version := self._version(loop)) is not None:
            return _named(parent, version)
        number = 1 + max((number for number, _ in _versions(parent)), default=-1)
        while True:
            path = parent / f"version_{number}"
            try:
                path.mkdir()
            except FileExistsError:  # another run was faster
                number += 1
            else:
                return path

    def _parent(self, loop: Loop) -> Path:
        root = Path(self.root or os.environ.get("LIGHTLOOP_RUNS") or "runs")
        return root / plain(self.run_name or loop.module_name)

    def _version(self, loop: Loop) -> int | str | None:
        return loop.stash.get(RUN_VERSION) if self.version is None else self.version

    def _folders(self, loop: Loop) -> list[Path]:
        parent = self._parent(loop)
        if (version := self._version(loop)) is not None:
            return [path for path in [_named(parent, version)] if path.is_dir()]
        return [path for _, path in sorted(_versions(parent), reverse=True)]


def _named(parent: Path, version: int | str) -> Path:
    return parent / (f"version_{version}" if isinstance(version, int) else plain(version))


def _versions(parent: Path) -> list[tuple[int, Path]]:
    if not parent.is_dir():
        return []
    return [(int(found[1]), path) for path in parent.iterdir() if (found := re.fullmatch(r"version_(\d+)", path.name))]


def plain(name: str) -> str:
    """``name`` as that of one folder: a slash makes no folder in a folder."""
    return re.sub(r"[^\w.=+-]", "_", name)
