"""Stop training when its time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import seconds_of


class TimeLimit(Plugin):
    """Stop training at the first batch boundary after ``limit``.

    Without a maximum of epochs or steps, epoch follows epoch until then. Minimums of epochs or steps delay the end.

    What counts is the time spent in fit, validation included, over all the parts of a run that was resumed.
    """

    name = "time_limit"
    tags = ("bounds",)
    before = ("checkpoint",)
    state = ("_before",)
    transient = ("_since", "seconds")

    limit: int | float | str | timedelta | Mapping[str, float] | None = option(
        None,
        "Maximum training time: seconds, '15 min', 'DD:HH:MM:SS', a timedelta, or its arguments in a mapping.",
        flag="max_time",
        neutral=True,
    )

    def validate(self) -> None:
        try:
            self.seconds = seconds_of(self.limit)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            forms = "seconds, text such as '15 min' or 'DD:HH:MM:SS', a timedelta, or its arguments in a mapping"
            raise self.invalid("limit", forms) from error
        if not self.seconds >= 0:
            raise self.invalid("limit", "a time from 0")
        self._before = 0.0
        self._since: float | None = None

    @property
    def spent(self) -> float:
        """The seconds of training so far."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        self._before, self._since = 0.0, time.monotonic()
        yield  # a resumed run now knows what it had spent
        self.after_batch(loop)

    @hookimpl
    def epochs_remain(self, loop: Loop) -> bool:
        return True

    @hookimpl
    def total_steps(self, loop: Loop) -> float:
        return math.inf

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if self.spent >= self.seconds:
            loop.stop(f"max_time={self.limit} is up")

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        self._before, self._since = self.spent, None

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self.spent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before = state["spent"]
        self._since = None if self._since is None else time.monotonic()
