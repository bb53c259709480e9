"""Signal handling during a run, shared by several plugins."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any

from torch.utils.data import DataLoader

Handler = Callable[[int, FrameType | None], Any]


class Terminated(BaseException):
    """A signal has ended the run, and all of it is closed.

    What is around the run is closed by it as by any exception. Where nobody catches it, the process dies by the signal, as
    if it had never been handled: shells, SLURM and systemd look at that, and an exit status of 128 + n is something else.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    def die(self) -> None:
        """Close what is to be closed at the end of a process, and end it."""
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        signal.signal(self.number, signal.SIG_DFL)
        os.kill(os.getpid(), self.number)
        os._exit(128 + self.number)  # the signal is blocked, or kills nobody


def ending(number: int) -> BaseException:
    """Return the exception to raise after a run is closed, so that the process ends by the signal."""
    if multiprocessing.parent_process() is not None:
        return SystemExit(128 + number)  # multiprocessing knows nothing else, and its parent reads the exit status
    if getattr(sys.excepthook, "func", None) is not _unhandled:
        sys.excepthook = functools.partial(_unhandled, sys.excepthook)
    return Terminated(number)


def _unhandled(
    other: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, Terminated):
        if (cause := error.__cause__) is not None:
            other(type(cause), cause, cause.__traceback__)
        error.die()
    other(kind, error, trace)


class Handlers:
    """Has ``handle(number)`` called when one of some signals comes, until :meth:`remove` puts back what there was.

    A handler that the user has installed is called as well, first. Where a plugin has handled a signal, the next one to
    install its own takes its place for as long. In a thread that is not the main one, and for signals that are ignored,
    nothing is installed.
    """

    def __init__(self) -> None:
        self._handle: Callable[[int], None] | None = None
        self._before: dict[int, Handler | int | None] = {}
        self._users: dict[int, Handler] = {}
        self._sheltered: list[tuple[DataLoader[Any], Shelter]] = []

    def install(self, numbers: Iterable[int], handle: Callable[[int], None]) -> None:
        """Begin; ``handle`` must do no more than what is safe between any two lines of Python."""
        self.remove()
        if threading.current_thread() is not threading.main_thread():
            return
        self._handle = handle
        for number in numbers:
            before = signal.getsignal(number)
            if before in (None, signal.SIG_IGN):
                continue
            self._before[number] = before
            other = getattr(before, "__self__", None)
            user = other._users.get(number) if isinstance(other, Handlers) else before
            if callable(user) and user is not signal.default_int_handler:
                self._users[number] = user
            signal.signal(number, self._call)

    def shelter(self, loader: object) -> None:
        """Let the workers that ``loader`` starts from now on live through the signals that are handled, if it is a DataLoader.

        A terminal, ``timeout``, SLURM and systemd send a signal to all processes of a group. The batch after which the run
        ends may still need its workers, and torch raises an error in this process when one of them dies.
        """
        if isinstance(loader, DataLoader) and loader.num_workers and self._before:
            shelter = Shelter(tuple(self._before), loader.worker_init_fn)
            loader.worker_init_fn = shelter
            self._sheltered.append((loader, shelter))

    def known_to_user(self, number: int) -> bool:
        """Whether the user has installed a handler for the signal."""
        return number in self._users

    def remove(self) -> None:
        """Put back what there was, except where another handler has been installed since."""
        for loader, shelter in reversed(self._sheltered):
            if loader.worker_init_fn is shelter:
                loader.worker_init_fn = shelter.users
        self._sheltered = []
        before, self._before, self._users, self._handle = self._before, {}, {}, None
        for number, handler in before.items():
            if signal.getsignal(number) == self._call:
                signal.signal(number, handler)

    def _call(self, number: int, frame: FrameType | None) -> None:
        if (user := self._users.get(number)) is not None:
            user(number, frame)
        if self._handle is not None:
            self._handle(number)


class Shelter:
    """What a worker of a DataLoader calls when it starts: the first signal of each kind then does nothing, a second one kills."""

    def __init__(self, numbers: tuple[int, ...], users: Callable[[int], Any] | None) -> None:
        self.numbers, self.users = numbers, users

    def __call__(self, worker: int) -> None:
        """Shelter the worker ``worker``, then call what the user has given."""
        for number in self.numbers:
            signal.signal(number, _let_pass)
        if self.users is not None:
            self.users(worker)


def _let_pass(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # torch ends a worker that does not stop by SIGTERM
