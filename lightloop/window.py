"""A window: the batches whose gradients add up to one step, of one optimizer or of several that step together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightloop.gradients import Weight
from lightloop.inputs.optimizers import Setup, needs_closure
from lightloop.side_by_side import SideBySide
from lightloop.warning import warn

if TYPE_CHECKING:
    from lightloop.world import World


@dataclass
class Window:
    """The accumulated gradient of an optimizer since its last step; of all optimizers if they share one loss.

    The gradient of a window is the mean over what is really in it: sum of weight times gradient, over sum of weights.
    Each backward is seeded with ``weight / planned``, so a window that turns out as planned needs no correction.
    """

    optimizer: Optimizer
    """The optimizer that steps with it; a :class:`SideBySide` where several do."""
    members: tuple[int, ...]
    """The indices, in ``loop.optimizers``, of those that step with it."""
    planned: int = 1
    """The planned number of batches, as plan_window answers before the first of them goes forward."""
    batches: int = 0
    """The number of batches that have begun in it."""
    contributions: int = 0
    """The number of pieces that have added a gradient."""
    weight: Weight = 0
    """Sum of their weights; a tensor stays on its device."""
    weighted: bool = False
    """Whether any piece had a weight, which other processes then have to know."""
    spent: list[tuple[Callable[[], Tensor | None], int]] = field(default_factory=list)
    """Gradients with which a step was taken and which were not dropped then: references, each with the tensor's version."""
    warned: bool = False
    """Whether it has been said that only some batches came with a weight."""
    replays: list[tuple[tuple[Any, ...], Tensor]] = field(default_factory=list)
    """The inputs needed to replay each piece, with its share in the loss; kept if the window may be replayed."""

    def add(self, weight: Weight, weighted: bool) -> None:
        """Count a piece whose gradient has been added."""
        if self.contributions and weighted != self.weighted and not self.warned:
            self.warned = True
            warn(
                "training_step gave a weight for some batches of a window and none for others: each of those counts as 1",
            )
        self.contributions += 1
        self.weight = self.weight + weight  # type: ignore[operator]
        self.weighted = self.weighted or weighted

    def correction(self, world: World) -> float | Tensor:
        """Return the factor that turns the accumulated gradient into the mean over the window, on all ranks."""
        weight = self.weight
        if self.weighted and world.size > 1:
            weight = world.reduce(torch.as_tensor(_plain(weight), dtype=torch.float64), "mean")
        if isinstance(weight, Tensor):
            return torch.where(weight == 0, torch.ones_like(weight), self.planned / weight)
        return float(self.planned / weight) if weight else 1.0

    def clear(self) -> None:
        """Reset the window, keeping its plan."""
        self.batches = self.contributions = self.weight = 0
        self.weighted = False
        self.replays = []


def windows_for(setup: Setup, asks: bool) -> list[Window]:
    """Return a window for each optimizer, or one for all of them if they share one loss, forward and backward.

    That is so where training_step takes no ``optimizer_idx`` and does not step by itself, no frequency is given, and none of
    the optimizers needs a closure.

    Args:
        setup: the optimizers.
        asks: whether training_step wants to know which optimizer it is called for.
    """
    optimizers = setup.optimizers
    alone = asks or setup.by_hand or setup.frequencies or any(needs_closure(optimizer) for optimizer in optimizers)
    if len(optimizers) > 1 and not alone:
        return [Window(SideBySide(optimizers), tuple(range(len(optimizers))))]
    return [Window(optimizer, (index,)) for index, optimizer in enumerate(optimizers)]


def _plain(weight: Weight) -> float | Tensor:
    return float(weight) if isinstance(weight, Fraction) else weight
