"""When a plugin acts: every so many steps, batches, epochs or seconds, by a predicate, or by a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lightloop.toolkit._rhythms import Batches, Epochs, Fractions, Predicate, Rhythm, Schedule, Seconds, Steps
from lightloop.toolkit.amounts import read_amount

if TYPE_CHECKING:
    from lightloop.loop import Loop

FORMS = "a whole number of steps, text such as '10 epochs', '500 batches' or '15 min', a fraction of an epoch such as 0.25, a timedelta, a function of the loop, or a schedule {epoch: any of these}"


class Every:
    """How often a plugin acts: every n steps, batches, epochs or seconds, by a predicate, or by a schedule.

    Ask :meth:`due` in ``after_batch`` (or ``after_step``) and :meth:`due_at_epoch_end` in ``after_epoch``, and act where
    the answer is True; call :meth:`start` in ``before_fit``, and keep :meth:`state_dict` with the plugin's state. Each
    mark is answered once, whoever asks how often: steps are counted as they are applied, so neither accumulation nor
    several optimizers make a mark come twice, and a mark that was passed over between two questions is made up for.

    Args:
        when: one of

            * ``100`` or ``"100 steps"``: applied optimizer steps, over the whole run;
            * ``"500 batches"``: training batches, over the whole run;
            * ``"10 epochs"``: finished epochs;
            * ``0.25`` or ``"0.25 epochs"``: after the batches ``ceil(i * n * 0.25)`` of the n of an epoch, its end included;
            * ``"90 s"``, ``"15 min"``, ``"2 h"``, ``"DD:HH:MM:SS"`` or a timedelta: time since the last mark; if it is up on
              one rank, it is on all;
            * a function of the loop that says yes or no after each batch, the same on every rank;
            * ``{0: 100, 5: "1 epoch"}``: each of these from its epoch on, nothing before the first.

    Raises:
        TypeError, ValueError: if ``when`` is none of these; the message calls it ``what``, such as an option's name.
    """

    def __init__(
        self,
        when: Every | int | float | str | timedelta | Callable[[Loop], Any] | Mapping[int, Any],
        what: str = "when to act",
    ) -> None:
        self.when: Any = when.when if isinstance(when, Every) else when
        self._what = what
        self._rhythm = _rhythm(self.when, what)

    @property
    def only_at_epoch_end(self) -> bool:
        """Whether :meth:`due` always says no, so that it need not be asked."""
        return type(self._rhythm) is Epochs

    def start(self, loop: Loop) -> None:
        """Begin anew with a fit.

        Raises:
            ValueError: if a fraction of an epoch is asked for and the training loader does not know its length.
        """
        self._rhythm = _rhythm(self.when, self._what)
        self._rhythm.start(loop)

    def due(self, loop: Loop) -> bool:
        """Whether to act now, asked once a batch or once a step is done."""
        return self._rhythm.due(loop)

    def due_at_epoch_end(self, loop: Loop) -> bool:
        """Whether to act now, asked in ``after_epoch``: an epoch that was broken off is not counted."""
        return self._rhythm.due_at_epoch_end(loop)

    def state_dict(self) -> dict[str, Any]:
        """Where the rhythm is."""
        return self._rhythm.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where it was."""
        self._rhythm.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Every({self.when!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Every) and self.when == other.when

    __hash__ = None  # type: ignore[assignment]


def _rhythm(when: object, what: str) -> Rhythm:
    if isinstance(when, bool):
        raise TypeError(f"{what} must be {FORMS}; {when!r} is bool")
    if isinstance(when, int):
        return _counted("steps", when, when, what)
    if isinstance(when, float):
        return _counted("epochs", when, when, what)
    if isinstance(when, timedelta):
        return _counted("seconds", when.total_seconds(), when, what)
    if isinstance(when, Mapping):
        if not when or not all(type(epoch) is int and epoch >= 0 for epoch in when):
            raise ValueError(f"{what}: a schedule must be {{epoch from 0: when to act}}; it is {when!r}")
        return Schedule(
            {epoch: _rhythm(each.when if isinstance(each, Every) else each, what) for epoch, each in when.items()}
        )
    if callable(when):
        return Predicate(when)
    if not isinstance(when, str):
        raise TypeError(f"{what} must be {FORMS}; {when!r} is {type(when).__name__}")
    amount = read_amount(when)
    if amount is None:
        raise ValueError(f"{what} must be {FORMS}; it is {when!r}")
    return _counted(*amount, when, what)


def _counted(unit: str, count: float, when: object, what: str) -> Rhythm:
    if not 0 < count < math.inf:
        raise ValueError(f"{what} must be above 0; it is {when!r}")
    if unit == "seconds":
        return Seconds(count)
    if unit == "epochs" and count < 1:
        return Fractions(count)
    if count != int(count):
        raise ValueError(f"there are only whole {unit}; {what} is {when!r}")
    kind = {"steps": Steps, "batches": Batches, "epochs": Epochs}[unit]
    return kind(int(count))
