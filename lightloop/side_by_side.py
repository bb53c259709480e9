"""Several optimizers that step after one loss, as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


class SideBySide(Optimizer):
    """``loop.optimizer`` where one loss is for several optimizers: one gradient, of all of their parameters.

    Its groups are theirs, so that norms, clipping and unscaling are those of one model. Each keeps a state, rates and
    hooks of its own, and is stepped by itself.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        # Not torch's own __init__, which would make a state and groups that nothing belongs to.
        self.optimizers = tuple(optimizers)
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # torch has an attribute
        """The groups of all of them; a parameter that several have is in the first group that has it."""
        groups, seen = [], set[Tensor]()
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            mine = group["params"]
            if seen.isdisjoint(mine):
                groups.append(group)
            else:
                groups.append({**group, "params": [each for each in mine if each not in seen]})
            seen.update(mine)
        return groups

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]  # torch has an attribute
        """What they keep of each parameter."""
        return {parameter: kept for optimizer in self.optimizers for parameter, kept in optimizer.state.items()}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each of them, with a closure of its own where it takes one; else, a closure is called once, before the first of them."""
        if (of := getattr(closure, "of", None)) is not None:
            losses = [optimizer.step(*of(optimizer)) for optimizer in self.optimizers]
            return losses[0]
        loss = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all of their gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def __reduce__(self) -> tuple[Any, ...]:
        # Torch's own way forgets the optimizers, and puts hooks around this class's step, for all instances.
        return type(self), (self.optimizers,)

    def __repr__(self) -> str:
        return f"SideBySide({', '.join(type(optimizer).__name__ for optimizer in self.optimizers)})"


def in_order_of(module: nn.Module, groups: Sequence[Mapping[str, Any]]) -> list[Tensor]:
    """The parameters in ``groups`` in the order in which ``module`` has them; those that it has not come last."""
    theirs = dict.fromkeys(parameter for group in groups for parameter in group["params"])
    return list(dict.fromkeys([*(each for each in module.parameters() if each in theirs), *theirs]))
