"""What loggers have in common; each logger is a file beside this one.

A logger of your own subclasses :class:`Logger` and says how to open, to write and to close::

    class Lines(Logger):
        name = "lines"

        def open(self, loop: Loop, directory: Path) -> None:
            self.file = open_in(directory, "metrics.jsonl", "a")

        def write(self, metrics: Mapping[str, float], step: int) -> None:
            print(json.dumps([step, metrics]), file=self.file)

        def flush(self) -> None:
            self.file.flush()
            os.fsync(self.file.fileno())

        def close(self, status: Ending) -> None:
            self.file.close()
            del self.file

and is used as ``Trainer(logger=Lines())``, or by its name once it is registered. ``open_in`` is that of ``lightloop``: it
opens files of the directory alone, and follows no link that someone else has put there.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from lightloop import Loop, Plugin, hookimpl
from lightloop.toolkit import open_directory
from lightloop_plugins.run_dir import RUN_DIR

Ending = Literal["success", "interrupted", "failed"]


class Logger(Plugin):
    """The base class of loggers; only the main rank opens, writes and closes.

    It is opened when the first epoch begins, or when there is a first row, and closed once, however the run ends.
    """

    tags = ("logger", "logs")
    after = ("run_dir",)
    requires = ("run_dir",)
    state: ClassVar[tuple[str, ...]] = ("_last_step",)
    transient: ClassVar[tuple[str, ...]] = ("_opened", "_made_in")

    _opened = False
    _made_in = ""
    _last_step = 0

    def open(self, loop: Loop, directory: Path) -> None:
        """Get ready to write; a resumed run begins at a ``loop.global_step`` above 0."""
        raise NotImplementedError

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Write down what ``module.hparams`` holds; called once, after :meth:`open`, if there is any."""

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one row; several can have one step."""
        raise NotImplementedError

    def flush(self) -> None:
        """Put what was written on the disk; called before a checkpoint, so that no row before it can be lost."""

    def close(self, status: Ending) -> None:
        """Let nothing be lost; keep nothing in the attributes that cannot be pickled."""

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._opened = False
        if loop.stage == "fit":
            self._last_step = 0

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        if not self._opened and loop.world.is_main:
            self._open(loop)

    @hookimpl
    def log_metrics(self, loop: Loop, metrics: Mapping[str, float], step: int) -> None:
        if not self._opened:
            self._open(loop)
        self._last_step = max(step, self._last_step)  # an evaluation by itself stands at the last step of the run
        self.write(metrics, self._last_step)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._opened:
            self._opened = False
            self.close(
                "failed" if loop.status == "failed" else "interrupted" if loop.status == "interrupted" else "success"
            )

    @hookimpl(optionalhook=True)
    def before_save(self) -> None:
        if self._opened:
            self.flush()
        if self._made_in:  # the names of new files
            directory, self._made_in = open_directory(self._made_in), ""
            os.fsync(directory)
            os.close(directory)

    def _open(self, loop: Loop) -> None:
        self._made_in = str(loop.stash[RUN_DIR])
        self.open(loop, loop.stash[RUN_DIR])
        self._opened = True
        if found := hyperparameters(loop.module):
            self.write_hyperparameters(found)


def hyperparameters(module: nn.Module) -> dict[str, Any]:
    """What ``module.hparams`` holds: a mapping, a dataclass or a namespace; nothing where there is none."""
    found = getattr(module, "hparams", None)
    if isinstance(found, Mapping):
        return {str(name): value for name, value in found.items()}
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        return dataclasses.asdict(found)
    return dict(vars(found)) if isinstance(found, argparse.Namespace) else {}
