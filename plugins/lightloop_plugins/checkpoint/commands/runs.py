"""The runs of ``lightloop verify-resume``: processes of ``lightloop fit`` with a witness, in a folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightloop.cli.front import UsageError
from lightloop_plugins.checkpoint.commands.places import Place
from lightloop_plugins.checkpoint.commands.traces import Trace
from lightloop_plugins.checkpoint.commands.witness import VARIABLE, Witness
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage.folder import FOLDER
from lightloop_plugins.checkpoint.storage.local import LocalFolder

OVERRIDES = {
    "enable_checkpointing": "true",
    "checkpoint_dir": "null",
    "save_every": "null",
    "monitor": "null",
    "save_weights_only": "false",
    "save_on_exception": "false",
    "async_save": "false",
    "on_save_error": "raise",
    "run_version": "run",
}
"""Options that say where and when to save; what is saved does not depend on them."""


class Runs:
    """The runs of one verification, in a folder of their own."""

    def __init__(self, folder: Path, words: list[str], places: list[int]) -> None:
        self.folder = folder
        self.words = words
        self.places = places
        self.lives = 0

    def live(self, name: str, kill: int | None = None, resume: bool = False) -> None:
        """One process, from its beginning or from where the one before it was killed.

        Raises:
            CheckpointError: if it does not come as far as it should.
        """
        self.lives += 1
        log = self.folder / f"{self.lives}-{name}.log"
        told = {"folder": str(self.folder), "name": name, "places": self.places, "kill": kill}
        plugins = [os.environ.get("LIGHTLOOP_PLUGINS", ""), f"{Witness.__module__}:{Witness.__name__}"]
        environ = {VARIABLE: json.dumps(told), "LIGHTLOOP_PLUGINS": ",".join(filter(None, plugins))}
        options = {**OVERRIDES, "save_last": str(2 + max(1, len(self.places))), "resume": "auto" if resume else "null"}
        options |= {"default_root_dir": str(self.folder), "output": str(self.folder / f"{name}.pt")}
        code = run_fit([*self.words, *(f"--{option}={value}" for option, value in options.items())], environ, log)
        if code != 0 if kill is None else not self.killed_at(kill):
            raise CheckpointError(_why(log, code))

    def killed_at(self, place: int) -> bool:
        """Whether the run that is under way has saved and been killed there."""
        return any(manifest.batch == place for _, manifest in self.saved("run")) and not self.trace("parts")[0].end

    def trace(self, name: str) -> list[Trace]:
        """What each rank has written down."""
        return [Trace.read(path) for path in sorted(self.folder.glob(f"{name}-*.jsonl"))]

    def saved(self, name: str) -> list[tuple[Place, Any]]:
        """The checkpoints of a run, in their order."""
        found = []
        for path in self.folder.glob(f"*/{name}/{FOLDER}"):
            folder = LocalFolder(path)
            found += [(Place(folder, each), folder.manifest(each)) for each in folder.names()]
        return sorted(found, key=lambda each: each[1].place)


def run_fit(words: list[str], environ: Mapping[str, str], log: Path) -> int:
    """``lightloop fit`` in a process of its own; its exit code."""
    with open(log, "wb") as stream:
        program = [sys.executable, "-m", "lightloop", "fit", *words]
        return subprocess.run(
            program, env={**os.environ, **environ}, stdout=stream, stderr=stream, check=False
        ).returncode


@contextmanager
def run_folder(keep: str | None) -> Iterator[Path]:
    """The folder that the user wants to keep, which must be empty, or one that is gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="lightloop-verify-") as folder:
            yield Path(folder)
        return
    path = Path(keep).absolute()
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise UsageError(f"--keep {keep}: the folder is not empty")
    yield path


def _why(log: Path, code: int) -> str:
    """The end of a log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"the run ended with {code} before it should:\n" + "\n".join(f"  {line}" for line in lines[-12:])
