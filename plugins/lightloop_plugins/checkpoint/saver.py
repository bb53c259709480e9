"""Write the checkpoints of one run, now or on a thread, and keep their number small."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lightloop.toolkit import warn
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage.folder import PREFIX, Content, Folder
from lightloop_plugins.checkpoint.storage.retention import Saved, find_saved, remove, to_remove

MAX_FAILURES = 3
"""So many saves in a row may fail with a warning; the next one is an error."""


def new_run() -> str:
    """An identity for a run; it draws no random number that training could miss."""
    return uuid.uuid4().hex[:12]


@dataclass
class Saver:
    """One run's writer, opened for a folder."""

    folder: Folder
    run: str
    last: int
    top: int
    monitor: str | None
    mode: str
    warn: bool
    """Whether a save that fails is a warning."""
    threaded: bool
    resumed: str | None = None
    """The checkpoint in the folder that the run was told to go on from; it is never deleted."""
    content: str = "run"
    """What is saved and counted: a "run", or "weights" alone. The number of others in the folder stays as it is."""
    saved: list[Saved] = field(default_factory=list)
    failures: int = 0

    def open(self) -> None:
        """Become the writer of the folder, and find what the run has in it."""
        self.folder.open(self.run)
        self.saved = find_saved(self.folder, self.run, self.monitor, self.mode, self.content)
        self._start()

    def _start(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint") if self.threaded else None
        self._flying: Future[None] | None = None

    def save(self, content: Content, body: Mapping[str, Any], score: float | None, prefix: str = PREFIX) -> str:
        """Write a checkpoint; its name. With a thread, it is written when :meth:`wait` has returned."""
        self.wait()
        name = self._name(body, prefix)
        entry = Saved(name, (body["step"], body["batch"]), score)
        parent = self.saved[-1].name if self.saved else self.resumed
        body = {"run": self.run, "parent": parent, **body}
        if self._pool is not None:
            self._flying = self._pool.submit(self._write, entry, content.frozen(), body)
        else:
            try:
                self._write(entry, content, body)
            except Exception as error:
                self.failed(error)
        return name

    def wait(self) -> None:
        """Wait for the save that is under way; its error is raised here."""
        flying, self._flying = self._flying, None
        if flying is not None:
            try:
                flying.result()
            except Exception as error:
                self.failed(error)

    def close(self) -> None:
        """Wait, and let others write."""
        try:
            if self._flying is not None:
                self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            self.folder.close()

    @property
    def best(self) -> Saved | None:
        """The checkpoint with the best score."""
        scored = [each for each in self.saved if each.score is not None]
        return max(scored, key=lambda each: (each.score or 0.0, (-each.place[0], -each.place[1])), default=None)

    def _write(self, entry: Saved, content: Content, body: Mapping[str, Any]) -> None:
        counts = entry.name.startswith(PREFIX) and body.get("content") == self.content
        try:
            content.save(self.folder, entry.name, body)
        except Exception:
            if counts and self.folder.has(entry.name):  # only its name may not be on the device, and it is not removed
                self.saved.append(entry)
            raise
        self.failures = 0
        if not counts:
            return
        self.saved.append(entry)
        for old in to_remove(self.saved, self.last, self.top, [self.resumed] if self.resumed else []):
            self.saved.remove(old)
            remove(self.folder, old)

    def failed(self, error: Exception) -> None:
        """Raise ``error``, or warn of it where saves may fail."""
        self.failures += 1
        if not self.warn or self.failures > MAX_FAILURES or not isinstance(error, (CheckpointError, OSError)):
            raise error
        warn(f"{error}. Training goes on ({self.failures} in a row failed)")

    def _name(self, body: Mapping[str, Any], prefix: str) -> str:
        name = f"{prefix}{body['step']:09d}-batch-{body['batch']:09d}"
        if self.folder.has(name):
            name += f"-{self.run}"
        number, free = 1, name
        while self.folder.has(free):
            number += 1
            free = f"{name}-{number}"
        return free
