"""How progress looks: a tqdm bar, or lines where there is no terminal to draw on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from time import monotonic
from typing import Any, Protocol, TextIO

from lightloop_plugins._notebook import in_notebook

BAR = "{{desc:<14}} {{percentage:3.0f}}% {bar} {{n_fmt}}/{{total_fmt}} [{{elapsed}}<{{remaining}}{{postfix}}]"
UNSIZED = "{desc:<14} {n_fmt} batches [{elapsed}{postfix}]"


class Track(Protocol):
    """One thing whose progress is shown."""

    done: int
    """How many batches were done when it was last drawn."""
    over: bool
    """Whether it was then at its end."""

    def draw(self, done: int, values: Mapping[str, float], over: bool = False) -> None:
        """Show that ``done`` batches are done, and ``values``."""

    def rest(self, seconds: float) -> None:
        """Leave the last ``seconds`` out of the speed."""

    def close(self) -> None:
        """Show it no more, or leave its last state there."""


New = Callable[[str, "int | None", int, bool], Track]
"""Makes a track of a title, how many batches there are if that is known, how many are done, and whether it stays."""


def choose(position: int = 0) -> tuple[New, float]:
    """What suits the place where ``sys.stderr`` goes, and the seconds between two drawings there."""
    if in_notebook():
        if find_spec("ipywidgets") is None:
            return Lines, 10.0
        from tqdm.notebook import tqdm as notebook

        return _bars(notebook, "{bar}", 0), 0.5
    if sys.stderr is not None and sys.stderr.isatty():
        from tqdm import tqdm as terminal

        return _bars(terminal, "{bar:20}", position), 0.2
    return Lines, 10.0


def _bars(kind: Any, shape: str, position: int) -> New:
    quiet = type("Bar", (kind,), {"monitor_interval": 0})  # no thread that redraws: drawing is done here

    def new(title: str, total: int | None, done: int, stays: bool) -> Track:
        form = UNSIZED if total is None else BAR.format(bar=shape)
        bar = quiet(
            desc=title, total=total, initial=done, leave=stays, bar_format=form, dynamic_ncols=True, file=sys.stderr,
            position=position or None,
        )  # fmt: skip
        return Bar(bar, done)

    return new


class Bar:
    """A tqdm bar that is only ever told where it is."""

    def __init__(self, bar: Any, done: int) -> None:
        self.bar, self.first, self.done, self.over = bar, done, done, False
        self.start = monotonic()

    def draw(self, done: int, values: Mapping[str, float], over: bool = False) -> None:
        self.done, self.over, self.bar.n = done, over, done
        self.bar.set_postfix_str(", ".join([*speed(done - self.first, monotonic() - self.start), *pairs(values)]))

    def rest(self, seconds: float) -> None:
        self.start += seconds
        self.bar.start_t += seconds
        self.bar.last_print_t += seconds

    def close(self) -> None:
        self.bar.close()


class Lines:
    """Whole lines without control characters, for a log file; one that does not stay is shown only if it takes long."""

    def __init__(self, title: str, total: int | None, done: int, stays: bool) -> None:
        self.title, self.total, self.first, self.done, self.stays = title, total, done, done, stays
        self.over, self.start, self.unsaid = False, monotonic(), ""

    def draw(self, done: int, values: Mapping[str, float], over: bool = False) -> None:
        self.done, self.over = done, over
        count = f"{done}/{self.total}" if self.total is not None else f"{done} batches"
        line = ", ".join(
            [f"{self.title}: {count}", *speed(done - self.first, monotonic() - self.start), *pairs(values)]
        )
        if over:
            self.unsaid = line  # evaluation may yet add to it
        else:
            self.unsaid, self.stays = "", True
            say(line, sys.stderr)

    def rest(self, seconds: float) -> None:
        self.start += seconds

    def close(self) -> None:
        if self.unsaid and self.stays:
            say(self.unsaid, sys.stderr)


def say(line: str, file: TextIO | None) -> None:
    """Print ``line`` where there is something to print to."""
    if file is not None:
        print(line, file=file, flush=True)


def speed(batches: int, seconds: float) -> list[str]:
    """Batches per second, or seconds per batch where they are slow; nothing before the first."""
    if batches <= 0 or seconds <= 0:
        return []
    rate = batches / seconds
    return [
        f"{rate:.3g} batches/s"
        if 1 <= rate < 1000
        else f"{rate:.0f} batches/s"
        if rate > 1
        else f"{1 / rate:.3g} s/batch"
    ]


def pairs(values: Mapping[str, float]) -> list[str]:
    """Each of ``values`` as people read it."""
    return [f"{name}={value:.4g}" for name, value in values.items()]
