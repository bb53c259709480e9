"""Let Ctrl-C end a fit in good order: at the end of the batch, with everything saved and closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option

REASON = "Ctrl-C"


class Interrupt(Plugin):
    """End the fit after the batch when SIGINT comes, with status "interrupted"; the second one raises at once.

    A handler that the user has installed is called as well, first. The handler is put back however the fit ends. Only in
    the main thread can signals be handled; elsewhere, and where SIGINT is ignored, this plugin does nothing.
    """

    name = "interrupt"
    default = True

    reraise: bool = option(
        False,
        "Raise KeyboardInterrupt when everything has been closed, instead of returning a result.",
        flag="on_interrupt_raise",
        enables=False,
    )

    def check(self) -> None:
        self._loop: Loop | None = None
        self._before: Callable[[int, FrameType | None], Any] | int | None = None
        self._presses = 0

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._presses, self._loop = 0, None
        before = signal.getsignal(signal.SIGINT)
        main_thread = threading.current_thread() is threading.main_thread()
        if loop.stage == "fit" and main_thread and before not in (None, signal.SIG_IGN):
            self._before, self._loop = before, loop
            signal.signal(signal.SIGINT, self._handle)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        if self._loop is None:
            return
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)
        self._loop = self._before = None
        if self.reraise and self._presses and loop.status == "interrupted":
            raise KeyboardInterrupt(loop.stop_reason)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._presses += 1
        if callable(self._before) and self._before is not signal.default_int_handler:
            self._before(number, frame)
        if self._presses > 1 or self._loop is None:
            raise KeyboardInterrupt
        self._loop.interrupt(REASON)
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\nCtrl-C: training ends after this batch; press it again to end it at once\n")
