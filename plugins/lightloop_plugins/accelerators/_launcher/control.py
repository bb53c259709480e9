"""What ranks tell one another, whatever carries it: every message says what it is about."""

from __future__ import annotations

import os
import sys
import zlib
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor

from lightloop import World

T = TypeVar("T")

SLOTS = 6
"""How many numbers a control message has room for."""
GUARD = (
    " What concerns all of them (saving, validating, stopping, training) must be called on each rank: look for an "
    "`if rank == 0` around it"
)
OWN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


class RankError(RuntimeError):
    """The ranks are out of step, or one of them is gone."""


class ControlledWorld(World):
    """Processes among which every message is preceded by one that says what it is about.

    Where ranks meet that are about different things, such as one that saves under ``if rank == 0``, each of them raises a
    :class:`RankError` that has what all of them were doing. An engine says how numbers and objects go round.
    """

    def least(self, message: Tensor, within: float | None) -> list[int]:
        """The least of each of the numbers of ``message`` over all ranks.

        Raises:
            TimeoutError: if not all ranks have come ``within`` so many seconds.
        """
        raise NotImplementedError

    def everyones(self, value: T) -> list[T]:
        """The ``value`` of each rank, which all ranks are known to ask for."""
        raise NotImplementedError

    def told(self, value: T, source: int) -> T:
        """The ``value`` of rank ``source``, which all ranks are known to ask for."""
        raise NotImplementedError

    def meet(self, what: str, *numbers: int, within: float | None = None) -> list[int]:
        """The least of each of up to six numbers, over all ranks, once all of them are here for the same purpose.

        Raises:
            RankError: if they are here for other purposes, or do not come ``within`` so many seconds.
        """
        try:
            least, most, *answers = self.least(control_message(what, *numbers), within)
        except TimeoutError as error:
            raise RankError(
                f"rank {self.rank} is in {what}{called_from()}, and not all ranks have come.{GUARD}"
            ) from error
        if least != -most:
            raise self.out_of_step(self.everyones(f"{what}{called_from()}"))
        return answers[: len(numbers)]

    def out_of_step(self, said: list[str]) -> RankError:
        """The error of ranks that are about what each has ``said``."""
        each = "; ".join(f"rank {rank} is in {what}" for rank, what in enumerate(said))
        return RankError(f"the ranks are out of step: {each}.{GUARD}")

    def agree(self, *reasons: str | None) -> tuple[str | None, ...]:
        firsts = self.meet(f"agree ({len(reasons)})", *(self.size if each is None else self.rank for each in reasons))
        texts = {rank: self.told(reasons, rank) for rank in sorted({*firsts} - {self.size})}
        return tuple(None if rank == self.size else texts[rank][index] for index, rank in enumerate(firsts))

    def broadcast(self, value: T, source: int = 0) -> T:
        self.meet(f"broadcast (from rank {source})")
        return self.told(value, source)

    def gather(self, value: T) -> list[T]:
        self.meet("gather")
        return self.everyones(value)

    def barrier(self, within: float | None = None) -> None:
        self.meet("barrier", within=within)


def control_message(what: str, *numbers: int) -> Tensor:
    """What a rank sends that is about to do ``what``: least and most of it tell whether all ranks are."""
    about = zlib.crc32(what.encode())
    return torch.tensor([about, -about, *numbers, *[0] * (SLOTS - len(numbers))])


def called_from() -> str:
    """Where the user's own code was on the way here, if it was."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        own = file.startswith((*OWN, "<")) or f"{os.sep}lightloop{os.sep}" in file
        if not own:
            return f", called from {os.path.basename(file)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
