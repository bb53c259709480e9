"""The kinds of rhythm in which a plugin may act; :class:`lightloop.Every` chooses among them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightloop.loop import Loop


class Rhythm:
    """What all kinds have in common: marks on a count, each answered once. By itself it is never due."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.seen: int | None = None

    def start(self, loop: Loop) -> None:
        """Begin with a fit."""

    def due(self, loop: Loop) -> bool:
        """Whether to act after a batch or a step."""
        return False

    def due_at_epoch_end(self, loop: Loop) -> bool:
        """Whether to act in ``after_epoch``."""
        return False

    def passed(self, count: int, before: int) -> bool:
        """Whether a mark lies between the count last seen, or ``before`` where none was, and ``count``."""
        seen, self.seen = before if self.seen is None else self.seen, count
        return count // self.every > seen // self.every

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.seen = state["seen"]


class Steps(Rhythm):
    """Every so many applied optimizer steps."""

    def due(self, loop: Loop) -> bool:
        return self.passed(loop.global_step, loop.global_step - loop.stepped if loop.total_batches else 0)

    def due_at_epoch_end(self, loop: Loop) -> bool:
        return self.due(loop)  # a window may have been closed after the last batch


class Batches(Rhythm):
    """Every so many training batches."""

    def due(self, loop: Loop) -> bool:
        return self.passed(loop.total_batches + 1, loop.total_batches)


class Epochs(Rhythm):
    """Every so many finished epochs."""

    def due_at_epoch_end(self, loop: Loop) -> bool:
        return loop.epoch_finished and self.passed(loop.epoch + 1, loop.epoch)


class Fractions(Epochs):
    """After each so large part of an epoch, and at its end."""

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self.fraction = Fraction(fraction).limit_denominator(10**6)
        self.marks: frozenset[int] = frozenset()
        self.of_epoch: int | None = None

    def start(self, loop: Loop) -> None:
        self._read_marks(loop)
        self.of_epoch = None  # a run that is being resumed may yet get another loader

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


class Seconds(Rhythm):
    """So many seconds after the last mark."""

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


class Predicate(Rhythm):
    """Whenever a function of the loop says so."""

    def __init__(self, says: Callable[[Loop], Any]) -> None:
        super().__init__()
        self.says = says

    def due(self, loop: Loop) -> bool:
        return bool(self.says(loop))


class Schedule(Rhythm):
    """Another rhythm from each of some epochs on."""

    def __init__(self, rhythms: dict[int, Rhythm]) -> None:
        super().__init__()
        self.rhythms = dict(sorted(rhythms.items()))
        self.of_epoch: int | None = None
        self.now = Rhythm()

    def start(self, loop: Loop) -> None:
        for rhythm in self.rhythms.values():
            rhythm.start(loop)

    def due(self, loop: Loop) -> bool:
        return self._current(loop).due(loop)

    def due_at_epoch_end(self, loop: Loop) -> bool:
        return self._current(loop).due_at_epoch_end(loop)

    def _current(self, loop: Loop) -> Rhythm:
        if self.of_epoch != loop.epoch:
            self.of_epoch = loop.epoch
            self.now = next(
                (rhythm for epoch, rhythm in reversed(self.rhythms.items()) if epoch <= loop.epoch), Rhythm()
            )
        return self.now

    def state_dict(self) -> dict[str, Any]:
        return {"rules": [rhythm.state_dict() for rhythm in self.rhythms.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for rhythm, its_state in zip(self.rhythms.values(), state["rules"], strict=True):
            rhythm.load_state_dict(its_state)
