"""Let Ctrl-C end a fit gracefully: at the end of the batch, with everything saved and closed."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop_plugins._handlers import Handlers

REASON = "Ctrl-C"


class Interrupt(Plugin):
    """End the fit after the current batch on SIGINT, with status "interrupted"; a second SIGINT raises at once.

    A pass of validation that is on is finished first, so that a resumed run has what an undisturbed one would have.

    A handler that the user has installed is called as well, first. The handler is put back however the fit ends. Only in
    the main thread can signals be handled; elsewhere, and where SIGINT is ignored, this plugin does nothing.
    """

    name = "interrupt"
    tags = ("interrupts",)
    default = True
    transient = ("_handlers", "_loop", "_presses")

    reraise: bool = option(
        False,
        "Raise KeyboardInterrupt after everything is closed, instead of returning a result.",
        flag="on_interrupt_raise",
        enables=False,
    )

    def validate(self) -> None:
        self._handlers = Handlers()
        self._loop: Loop | None = None
        self._presses = 0

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._presses, self._loop = 0, None
        if loop.stage == "fit":
            self._loop = loop
            self._handlers.install([signal.SIGINT], self._press)

    @hookimpl(wrapper=True)
    def prepare_loader(self, loader: Iterable[Any]) -> Generator[None, Iterable[Any], Iterable[Any]]:
        self._handlers.shelter(loader)
        return (yield)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._handlers.remove()
        self._loop = None
        if self.reraise and self._presses and loop.status == "interrupted":
            raise KeyboardInterrupt(loop.stop_reason)

    def _press(self, number: int) -> None:
        self._presses += 1
        if self._presses > 1 or self._loop is None:
            raise KeyboardInterrupt
        self._loop.interrupt(REASON)
        until = "after this batch" if self._loop.evaluation is None else "when this pass of evaluation is over"
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"\n{REASON}: training ends {until}; press it again to end it at once\n".encode())
