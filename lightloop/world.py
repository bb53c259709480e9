"""The processes that train together: one, unless a strategy plugin says otherwise."""

from __future__ import annotations

from typing import Literal, TypeVar

from torch import Tensor

T = TypeVar("T")

Reduction = Literal["sum", "mean", "min", "max"]


class World:
    """One process by itself; a strategy plugin puts a subclass at ``loop.world``.

    Every method is a collective: either all ranks call it, or none does.
    """

    rank: int = 0
    """This process among all, 0 to ``size - 1``."""
    local_rank: int = 0
    """This process among those of its machine."""
    size: int = 1
    """How many processes train together."""
    in_lockstep: bool = False
    """Whether each forward of the module concerns all ranks, so that they must evaluate equally many batches, too."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and talks to the user."""
        return self.rank == 0

    def reduce(self, value: Tensor, op: Reduction = "sum") -> Tensor:
        """Return ``value`` reduced over all ranks, element by element, on its own device; the argument is unchanged."""
        return value

    def agree(self, *reasons: str | None) -> tuple[str | None, ...]:
        """Return, for each of ``reasons``, the first one that is not None in the order of ranks; else None."""
        return reasons

    def broadcast(self, value: T, source: int = 0) -> T:
        """Return the ``value`` of rank ``source``; it must be picklable."""
        return value

    def gather(self, value: T) -> list[T]:
        """Return the ``value`` of each rank, in the order of ranks."""
        return [value]

    def barrier(self, within: float | None = None) -> None:
        """Wait until every rank is here; where they all just were, ``within`` so many seconds, or it is an error."""
