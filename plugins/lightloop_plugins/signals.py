"""Let SIGTERM and SIGUSR1 end a fit gracefully: at the end of the batch, with everything saved and closed."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop_plugins._handlers import Handlers, Terminated, ending


class Signals(Plugin):
    """End the fit after the current batch when one of these signals comes, and then let the process die by it.

    The handler does nothing but note the signal; a second one ends the fit at once. When everything is closed, ``fit``
    raises ``Terminated``, which closes what is around it; where nobody catches it, the process dies by the signal, as it
    would have without this plugin. A process that multiprocessing has started exits with status 128 + n in its place.

    A handler that the user has installed is called as well, first, and put back however the fit ends; ``fit`` then
    returns, and the process is the user's to end. In a thread that is not the main one, and for signals that are ignored,
    this plugin does nothing. A long call into C delays what happens.
    """

    name = "signals"
    after = ("accelerator", "strategy")  # while ranks wait for one another to begin, nothing is lost by dying at once
    before = ("checkpoint",)
    default = True
    transient = ("_handlers", "_loop", "_came")

    listed: Sequence[str] = option(
        ("SIGTERM", "SIGUSR1"),
        "Signals that end a fit gracefully; () is none.",
        flag="end_on_signals",
        enables=False,
    )

    def validate(self) -> None:
        for name in self.listed:
            if not isinstance(name, str) or not name.startswith("SIG") or not hasattr(signal, name):
                raise self.invalid("listed", "names of signals, such as 'SIGTERM'")
        self._handlers = Handlers()
        self._loop: Loop | None = None
        self._came: int | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._came = None
        if loop.stage == "fit":
            self._loop = loop
            self._handlers.install([getattr(signal, name) for name in self.listed], self._note)

    @hookimpl(wrapper=True)
    def prepare_loader(self, loader: Iterable[Any]) -> Generator[None, Iterable[Any], Iterable[Any]]:
        self._handlers.shelter(loader)
        return (yield)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        came, self._came, self._loop = self._came, None, None
        chained = came is not None and self._handlers.known_to_user(came)
        self._handlers.remove()
        if came is not None and not chained:
            raise ending(came)  # raised when every plugin's teardown is done

    def _note(self, number: int) -> None:
        if self._came is not None or self._loop is None:
            raise ending(number)
        self._came = number
        self._loop.interrupt(signal.Signals(number).name)
        os.write(2, f"\n{signal.Signals(number).name}: training ends after this batch\n".encode())


__all__ = ["Signals", "Terminated"]
