"""When a plugin acts: every so many steps, batches, epochs or seconds, by a predicate, or by a schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lightloop.toolkit.amounts import read_amount

if TYPE_CHECKING:
    from lightloop.loop import Loop

FORMS = "a whole number of steps, text such as '10 epochs', '500 batches' or '15 min', a fraction of an epoch such as 0.25, a timedelta, a function of the loop, or a schedule {epoch: any of these}"


class Every:
    """A rhythm in which a plugin acts.

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
        TypeError, ValueError: if ``when`` is none of these.
    """

    def __init__(self, when: Every | int | float | str | timedelta | Callable[[Loop], Any] | Mapping[int, Any]) -> None:
        self.when: Any = when.when if isinstance(when, Every) else when
        self._rule = _rule(self.when)

    @property
    def only_at_epoch_end(self) -> bool:
        """Whether :meth:`due` always says no, so that it need not be asked."""
        return type(self._rule) is _Epochs

    def start(self, loop: Loop) -> None:
        """Begin anew with a fit.

        Raises:
            ValueError: if a fraction of an epoch is asked for and the training loader does not know its length.
        """
        self._rule = _rule(self.when)
        self._rule.start(loop)

    def due(self, loop: Loop) -> bool:
        """Whether to act now, asked once a batch or once a step is done."""
        return self._rule.due(loop)

    def due_at_epoch_end(self, loop: Loop) -> bool:
        """Whether to act now, asked in ``after_epoch``: an epoch that was broken off is not counted."""
        return self._rule.due_at_epoch_end(loop)

    def state_dict(self) -> dict[str, Any]:
        """Where the rhythm is."""
        return self._rule.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where it was."""
        self._rule.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Every({self.when!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Every) and self.when == other.when

    __hash__ = None  # type: ignore[assignment]


class _Rule:
    """What the kinds of rhythm have in common: marks on a count, each answered once."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.seen: int | None = None

    def start(self, loop: Loop) -> None:
        pass

    def due(self, loop: Loop) -> bool:
        return False

    def due_at_epoch_end(self, loop: Loop) -> bool:
        return False

    def passed(self, count: int, before: int) -> bool:
        """Whether a mark lies between the count last seen, or ``before`` where none was, and ``count``."""
        seen, self.seen = before if self.seen is None else self.seen, count
        return count // self.every > seen // self.every

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


class _Steps(_Rule):
    def due(self, loop: Loop) -> bool:
        return self.passed(loop.global_step, loop.global_step - loop.stepped if loop.total_batches else 0)

    def due_at_epoch_end(self, loop: Loop) -> bool:
        return self.due(loop)  # a window may have been closed after the last batch


class _Batches(_Rule):
    def due(self, loop: Loop) -> bool:
        return self.passed(loop.total_batches + 1, loop.total_batches)


class _Epochs(_Rule):
    def due_at_epoch_end(self, loop: Loop) -> bool:
        return loop.epoch_finished and self.passed(loop.epoch + 1, loop.epoch)


class _Fraction(_Epochs):
    def __init__(self, fraction: float) -> None:
        super().__init__()
        self.fraction = Fraction(fraction).limit_denominator(10**6)
        self.marks: frozenset[int] = frozenset()
        self.of_epoch: int | None = None

    def start(self, loop: Loop) -> None:
        self._read_marks(loop)

    def due(self, loop: Loop) -> bool:
        if self.of_epoch != loop.epoch:
            self._read_marks(loop)
        return loop.batch_idx + 1 in self.marks

    def _read_marks(self, loop: Loop) -> None:
        size = loop.num_batches
        if size is None:
            raise ValueError(
                f"every {float(self.fraction)} of an epoch cannot be found in a training loader of unknown length: "
                "say so many batches or steps"
            )
        count = math.ceil(1 / self.fraction)
        self.marks = frozenset(math.ceil(i * size * self.fraction) for i in range(1, count)) - {size}
        self.of_epoch = loop.epoch


class _Seconds(_Rule):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.since = time.monotonic()

    def due(self, loop: Loop) -> bool:
        now = time.monotonic()
        up = now - self.since >= self.seconds
        if loop.world.size > 1:
            up = loop.world.agree("time" if up else None)[0] is not None
        if up:
            self.since = now
        return up

    def state_dict(self) -> dict[str, Any]:
        return {"spent": time.monotonic() - self.since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.since = time.monotonic() - state["spent"]

    def __getstate__(self) -> dict[str, Any]:  # another process has another clock
        return {"every": self.every, "seen": self.seen, "seconds": self.seconds, **self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.every, self.seen, self.seconds = state["every"], state["seen"], state["seconds"]
        self.load_state_dict(state)


class _Predicate(_Rule):
    def __init__(self, says: Callable[[Loop], Any]) -> None:
        super().__init__()
        self.says = says

    def due(self, loop: Loop) -> bool:
        return bool(self.says(loop))


class _Schedule(_Rule):
    def __init__(self, rules: dict[int, _Rule]) -> None:
        super().__init__()
        self.rules = dict(sorted(rules.items()))
        self.of_epoch: int | None = None
        self.now = _Rule()

    def start(self, loop: Loop) -> None:
        for rule in self.rules.values():
            rule.start(loop)

    def due(self, loop: Loop) -> bool:
        return self._current(loop).due(loop)

    def due_at_epoch_end(self, loop: Loop) -> bool:
        return self._current(loop).due_at_epoch_end(loop)

    def _current(self, loop: Loop) -> _Rule:
        if self.of_epoch != loop.epoch:
            self.of_epoch = loop.epoch
            self.now = next((rule for epoch, rule in reversed(self.rules.items()) if epoch <= loop.epoch), _Rule())
        return self.now

    def state_dict(self) -> dict[str, Any]:
        return {"rules": [rule.state_dict() for rule in self.rules.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for rule, its_state in zip(self.rules.values(), state["rules"], strict=True):
            rule.load_state_dict(its_state)


def _rule(when: object) -> _Rule:
    if isinstance(when, bool):
        raise TypeError(f"when to act must be {FORMS}; {when!r} is bool")
    if isinstance(when, int):
        return _counted("steps", when, when)
    if isinstance(when, float):
        return _counted("epochs", when, when)
    if isinstance(when, timedelta):
        return _counted("seconds", when.total_seconds(), when)
    if isinstance(when, Mapping):
        if not when or not all(type(epoch) is int and epoch >= 0 for epoch in when):
            raise ValueError(f"a schedule must be {{epoch from 0: when to act}}; it is {when!r}")
        return _Schedule({epoch: _rule(each.when if isinstance(each, Every) else each) for epoch, each in when.items()})
    if callable(when):
        return _Predicate(when)
    if not isinstance(when, str):
        raise TypeError(f"when to act must be {FORMS}; {when!r} is {type(when).__name__}")
    amount = read_amount(when)
    if amount is None:
        raise ValueError(f"when to act must be {FORMS}; it is {when!r}")
    return _counted(*amount, when)


def _counted(unit: str, count: float, when: object) -> _Rule:
    if not 0 < count < math.inf:
        raise ValueError(f"when to act must be above 0; it is {when!r}")
    if unit == "seconds":
        return _Seconds(count)
    if unit == "epochs" and count < 1:
        return _Fraction(count)
    if count != int(count):
        raise ValueError(f"there are only whole {unit}; when to act is {when!r}")
    kind = {"steps": _Steps, "batches": _Batches, "epochs": _Epochs}[unit]
    return kind(int(count))


__all__ = ["Every"]
