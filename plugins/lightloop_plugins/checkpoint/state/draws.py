"""Reading that can be repeated: where random numbers were drawn in it after others had drawn from the same stream.

A loader that shuffles as it goes draws from the streams that dropout draws from as well. To read it once more, up to a
batch, each of its draws must find its stream where it was. So where a read drew, and the stream had been moved since the
reads before, the stream's state is kept; between those places one read follows the other, and nothing need be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from lightloop.toolkit import warn
from lightloop_plugins.checkpoint.state.streams import Stream

MUCH = 2**26
"""Bytes of states that are worth a warning."""


class Watch:
    """One stream: its states before reads that found it moved."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.moved: dict[int, bytes] = {}
        self._calm = True
        """Whether nothing has been drawn from it yet; then it is enough to look at it once a read."""
        self._last: bytes | None = None
        self._now = b""

    def before(self, read: int) -> None:
        """Look at it before the read ``read``."""
        now = self.stream.take()
        if self._calm:
            self._settle(read - 1, now)
        self._now = now

    def after(self, read: int) -> None:
        """Look at it after the read: whether that drew, and from elsewhere than the reads before had left it."""
        if self._calm:
            self._last = self._now
            return
        after = self.stream.take()
        if after != self._now:
            if self._now != self._last:
                self.moved[read] = self._now
            self._last = after

    def settle(self, read: int) -> None:
        """Make sure that the last read is accounted for."""
        if self._calm:
            self._settle(read, self.stream.take())

    def _settle(self, read: int, now: bytes) -> None:
        if self._last is not None and now != self._last:  # by that read or by other code, which cannot be told apart
            self.moved[read], self._calm, self._last = self._last, False, None

    def begin(self, moved: Mapping[int, bytes]) -> None:
        """Go on with what is known."""
        self.moved, self._calm, self._last = dict(moved), not moved, None


class Draws:
    """The reads of one epoch, of those that are known already and of those that follow.

    Args:
        streams: what is watched; without any, reads are counted alone.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.reads = 0
        """How many have been begun."""
        self.known = 0
        """So many are a repetition."""
        self._watches = {name: Watch(stream) for name, stream in streams.items()}
        self._place: dict[str, bytes] | None = None
        self._warned = False

    def read(self, source: Iterator[Any]) -> Any:
        """The next of ``source``."""
        number = self.reads
        self.reads += 1
        if number < self.known:
            return self._again(source, number)
        for watch in self._watches.values():
            watch.before(number)
        try:
            return next(source)
        finally:
            for watch in self._watches.values():
                watch.after(number)

    def repeated(self, source: Iterator[Any], count: int) -> Iterator[Any]:
        """Repeat reads until ``count`` are done; the streams are then where those left them."""
        while self.reads < count:
            self._put(self.reads)
            self.reads += 1
            if (value := next(source, self)) is self:
                break
            yield value
        self._place = self._take()

    def state(self) -> dict[str, Any]:
        """All that a repetition needs, as a plain tree."""
        for watch in self._watches.values():
            watch.settle(self.reads - 1)
        moved = {name: watch.moved for name, watch in self._watches.items() if watch.moved}
        size = sum(len(state) for states in moved.values() for state in states.values())
        if size > MUCH and not self._warned:
            self._warned = True
            warn(
                f"the training data draws from the same random numbers as the model ({', '.join(moved)}): to be resumed, each "
                f"checkpoint holds where they were at each batch, {size / 2**20:.0f} MiB by now. Give the data a generator "
                "of its own in an attribute, or give the loader state_dict and load_state_dict",
            )
        return {"reads": self.reads, "moved": {name: _packed(states) for name, states in moved.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Begin with the reads of which :meth:`state` told."""
        self.known = state["reads"]
        for name, packed in state["moved"].items():
            if name in self._watches:
                self._watches[name].begin(_unpacked(packed))

    def _again(self, source: Iterator[Any], number: int) -> Any:
        """Repeat one read while others draw as well: the streams are theirs again afterwards."""
        aside = self._take()
        for name, state in (self._place or {}).items():
            self._watches[name].stream.put(state)
        self._put(number)
        try:
            return next(source)
        finally:
            self._place = self._take()
            for name, state in aside.items():
                self._watches[name].stream.put(state)

    def _put(self, number: int) -> None:
        for watch in self._watches.values():
            if number in watch.moved:
                watch.stream.put(watch.moved[number])

    def _take(self) -> dict[str, bytes]:
        return {name: watch.stream.take() for name, watch in self._watches.items()}


class Repeatable:
    """``source``, whose reads are told to ``draws``, after the first ``skip``, which are passed over."""

    latest: Reads
    """The iterator over it that was made last; a loader with workers makes two, and reads from the second."""

    def __init__(self, source: Iterable[Any], draws: Draws, skip: int) -> None:
        self.source, self.draws, self.skip = source, draws, skip

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def __iter__(self) -> Reads:
        self.latest = Reads(iter(self.source), self.draws, self.skip)
        return self.latest


class Reads:
    """What is left of ``rest`` after ``skip`` reads, which are passed over before the first; reads are told to ``draws``."""

    def __init__(self, rest: Iterator[Any], draws: Draws, skip: int = 0) -> None:
        self._rest, self._draws, self._skip = rest, draws, skip

    def __iter__(self) -> Reads:
        return self

    def __next__(self) -> Any:
        if self._skip:
            self.catch_up()
        return self._draws.read(self._rest)

    def catch_up(self) -> None:
        """Pass over what is to be passed over, now."""
        skip, self._skip = self._skip, 0
        deque(self._draws.repeated(self._rest, skip), maxlen=0)


def _packed(states: Mapping[int, bytes]) -> dict[str, Any]:
    """Many states as one tensor; those of numpy's generators are texts of unlike lengths."""
    length = max(map(len, states.values()))
    rows = [torch.frombuffer(bytearray(state.ljust(length)), dtype=torch.uint8) for state in states.values()]
    return {"at": torch.tensor(list(states)), "states": torch.stack(rows)}


def _unpacked(packed: Mapping[str, Any]) -> dict[int, bytes]:
    return {
        number: state.numpy().tobytes() for number, state in zip(packed["at"].tolist(), packed["states"], strict=True)
    }
