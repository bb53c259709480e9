"""Let several optimizers take turns."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import Any

from lightloop import Loop, Plugin, Setup, hookimpl, option


class OptimizerFrequencies(Plugin):
    """Select exactly one optimizer for each window: the first for so many windows, then the second, and so on.

    Turns are counted in windows over the whole run, not in batches, so that accumulation starves none; they go on
    across epochs, and after a restart. ``loop.global_step`` counts the steps of all of them, ``loop.optimizer_steps``
    those of each. The pieces of one batch stay together: where each of them steps, they count as one window.
    """

    name = "optimizer_frequencies"
    default = True
    state = ("_windows", "_begun")
    transient = ("_ends",)

    frequencies: Sequence[int] | None = option(
        None,
        "For how many windows in turn each optimizer steps, e.g. [5, 1]; None: as configure_optimizers says by "
        "'frequency', and if it says nothing, all of them step in each.",
        flag="optimizer_frequencies",
    )

    def validate(self) -> None:
        given = self.frequencies
        if given is not None and (not given or any(type(every) is not int or every < 1 for every in given)):
            raise self.invalid("frequencies", "whole numbers from 1, one for each optimizer")

    @hookimpl(wrapper=True)
    def configure_optimizers(self, loop: Loop) -> Generator[None, Setup, Setup]:
        setup = yield
        if self.frequencies is not None:
            if len(self.frequencies) != len(setup.optimizers):
                raise self.invalid("frequencies", f"one number for each of the {len(setup.optimizers)} optimizers")
            setup.frequencies = list(self.frequencies)
        return setup

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._ends = list(accumulate(loop.frequencies))
        self._windows = 0
        """How many windows were closed."""
        self._begun = False
        """Whether a batch has gone into the window after those."""
        if not loop.frequencies:
            loop.opt_out(self)

    @hookimpl(wrapper=True)
    def select_optimizers(self, loop: Loop) -> Generator[None, Any, list[int]]:
        yield
        if loop.piece_idx == 0:
            if self._begun and not loop.windows[self._turn()].batches:
                self._windows += 1
            self._begun = True
        return [self._turn()]

    def _turn(self) -> int:
        place = self._windows % self._ends[-1]
        return next(index for index, end in enumerate(self._ends) if place < end)
