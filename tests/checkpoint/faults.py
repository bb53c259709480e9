"""A file system that fails, tears a write, or ends the process at its Nth call."""

import errno
import inspect
import os
import signal

from lightloop.testing.loggers import in_child
from lightloop_plugins.checkpoint.storage.disk import Disk

CALLS = [
    name for name, _ in inspect.getmembers(Disk, inspect.isfunction) if not name.startswith("_") and name != "free"
]
"""Those of which each must come off; a file system need not say how much room it has."""


class FaultyDisk(Disk):
    """Counts calls; at number ``at`` it does ``fault``: an errno raised ("once" or "on"), "kill" or "tear"."""

    def __init__(self, at=None, fault="once", number=errno.ENOSPC):
        self.at, self.fault, self.number = at, fault, number
        self.calls = []

    def meets(self, name):
        """Whether the fault's time has come."""
        index = len(self.calls)
        self.calls.append(name)
        return self.at is not None and (index == self.at or (self.fault == "on" and index > self.at))


def _faulty(name):
    real = getattr(Disk, name)

    def call(self, *arguments):
        if self.meets(name):
            if self.fault == "tear" and name == "write":
                handle, data = arguments
                real(self, handle, data[: len(data) // 2])
            if self.fault in ("tear", "kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(self.number, os.strerror(self.number))
        return real(self, *arguments)

    return call


for _name in CALLS:
    setattr(FaultyDisk, _name, _faulty(_name))


__all__ = ["CALLS", "FaultyDisk", "in_child"]
