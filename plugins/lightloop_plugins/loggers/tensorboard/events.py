"""Event files for TensorBoard that can be waited for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tensorboardX
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog


def summary_writer(directory: Path, suffix: str, flush_seconds: float, purge_step: int | None) -> Any:
    """A ``tensorboardX.SummaryWriter`` whose ``flush`` comes back when all that it was given is on the disk.

    That of tensorboardX hands events to a thread through a queue, and has no way to wait until the queue is empty.

    Args:
        directory: where the file is made.
        suffix: what its name ends with; no other file there may have it.
        flush_seconds: after so many seconds what was written is on the disk, if more is written.
        purge_step: the step from which on TensorBoard is to forget what earlier files have.
    """
    writer = tensorboardX.SummaryWriter(str(directory), filename_suffix=suffix)
    writer.file_writer.event_writer.close()  # the thread ends, and its file has nothing in it
    for path in directory.glob(f"events.out.tfevents.*{suffix}"):
        path.unlink()
    events = writer.file_writer.event_writer = _Events(directory, suffix, flush_seconds)
    if purge_step is not None:
        events.add_event(Event(step=purge_step, file_version="brain.Event:2"))
        events.add_event(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))
    return writer


class _Events:
    """Writes each event at once; has the methods of tensorboardX's ``EventFileWriter``."""

    def __init__(self, directory: Path, suffix: str, flush_seconds: float) -> None:
        self._directory, self._seconds = str(directory), flush_seconds
        self._events: Any = EventsWriter(str(directory / "events"), suffix)
        self.flush()

    def get_logdir(self) -> str:
        """The directory of the file."""
        return self._directory

    def add_event(self, event: Any) -> None:
        """Write ``event``; after :meth:`close`, nothing is written."""
        if self._events is not None:
            self._events.write_event(event)
            if time.monotonic() >= self._due:
                self.flush()

    def flush(self) -> None:
        """Put all that was written on the disk."""
        if self._events is not None:
            self._events.flush()
        self._due = time.monotonic() + self._seconds

    def close(self) -> None:
        """Flush and close the file."""
        events, self._events = self._events, None
        if events is not None:
            events.close()
