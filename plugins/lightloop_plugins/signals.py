"""Let SIGTERM and SIGUSR1 end a fit in good order: at the end of the batch, with everything saved and closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option


class Signals(Plugin):
    """End the fit after the batch when a signal of these comes, and then the process, with status 128 + its number.

    The handler does nothing but note the signal; a second one raises SystemExit at once. A handler that the user has
    installed is called as well, first, and put back however the fit ends. In a thread that is not the main one, and for
    signals that are ignored, this plugin does nothing. A long call into C delays what happens.
    """

    name = "signals"
    before = ("checkpoint",)
    default = True

    names: Sequence[str] = option(
        ("SIGTERM", "SIGUSR1"),
        "The signals that end a fit in good order; () is none.",
        flag="end_on_signals",
        enables=False,
    )

    def check(self) -> None:
        for name in self.names:
            if not isinstance(name, str) or not name.startswith("SIG") or not hasattr(signal, name):
                raise self.refuse("names", "names of signals, such as 'SIGTERM'")
        self._loop: Loop | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._came: int | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._came, self._before = None, {}
        if loop.stage != "fit" or threading.current_thread() is not threading.main_thread():
            return
        self._loop = loop
        for name in self.names:
            number = getattr(signal, name)
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):
                self._before[number] = before
                signal.signal(number, self._handle)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        came, self._came, self._loop = self._came, None, None
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
        chained = callable(self._before.get(came)) if came is not None else False
        self._before = {}
        if came is not None and not chained and loop.status == "interrupted":
            raise SystemExit(128 + came)  # raised when everybody's teardown is done

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        if self._came is not None or self._loop is None:
            raise SystemExit(128 + number)
        self._came = number
        self._loop.interrupt(signal.Signals(number).name)
        os.write(2, f"\n{signal.Signals(number).name}: training ends after this batch\n".encode())
