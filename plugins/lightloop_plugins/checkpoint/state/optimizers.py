"""Optimizers and schedulers as plain trees: taken, compared with what is there now, and put back."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightloop import Loop
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.tree import mapped
from lightloop_plugins.checkpoint.state.modules import parameters, split_as


def take_optimizers(loop: Loop, every: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Each optimizer's state, with the names of the parameters of its groups; ``every`` is what they may be."""
    names = {id(parameter): name for name, parameter in every.items()}
    return [
        {
            "class": type(optimizer).__qualname__,
            "groups": [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups],
            "state": optimizer.state_dict(),
        }
        for optimizer in loop.optimizers
    ]


def check_optimizers(loop: Loop, states: list[Any], what: str) -> None:
    """Refuse other optimizers, or other parameters in them, than there are now."""
    every = parameters(loop)
    now = take_optimizers(loop, every)
    if [state["class"] for state in states] != [state["class"] for state in now]:
        raise CheckpointError(
            f"{what} is of the optimizers {', '.join(state['class'] for state in states) or 'none'}; configure_optimizers "
            f"returns {', '.join(state['class'] for state in now) or 'none'}"
        )
    for index, (saved, here) in enumerate(zip(states, now, strict=True)):
        if saved["groups"] != here["groups"]:
            raise CheckpointError(
                f"{what}: optimizer {index} ({saved['class']}) has other parameters, or in another order, in its groups "
                f"there: {_difference(saved['groups'], here['groups'])}"
            )
        names = [name for group in saved["groups"] for name in group]
        for key in saved["state"]["state"]:
            if isinstance(key, int) and not 0 <= key < len(names):
                raise CheckpointError(f"{what}: optimizer {index} has the state of an unknown parameter {key!r}")


def apply_optimizers(loop: Loop, states: list[Any]) -> None:
    """Put back what :func:`take_optimizers` took, of the types that it had."""
    for optimizer, saved in zip(loop.optimizers, states, strict=True):
        load(optimizer, _split(optimizer, cloned(saved["state"])))


def load(optimizer: Optimizer, state: Any) -> None:
    """Let ``optimizer`` take ``state``, and mend what torch makes of values that it takes for others.

    It casts tensors to the type of their parameter, makes every iterable anew from its items, and a text thereby to one of
    a generator.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Casting complex values to real")  # it is mended below
        optimizer.load_state_dict(state)
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    plain = type(optimizer).load_state_dict is Optimizer.load_state_dict
    for key, its in state["state"].items():
        owner = every[key] if isinstance(key, int) else key
        for name, value in its.items() if isinstance(its, Mapping) and owner in optimizer.state else ():
            held = optimizer.state[owner]
            if name in held and (plain or (isinstance(value, Tensor) and isinstance(held[name], Tensor))):
                held[name] = _mended(held[name], value)


def take_schedulers(loop: Loop) -> list[dict[str, Any]]:
    """Each learning-rate scheduler's state."""
    for schedule in loop.schedules:
        if not hasattr(schedule.scheduler, "state_dict"):
            raise CheckpointError(
                f"the scheduler {type(schedule.scheduler).__name__} has no state_dict, so that it cannot be resumed: give it "
                "state_dict and load_state_dict"
            )
    return [{"class": type(s.scheduler).__qualname__, "state": s.scheduler.state_dict()} for s in loop.schedules]


def check_schedulers(loop: Loop, states: list[Any], what: str) -> None:
    """Refuse other schedulers than there are now."""
    there = [state["class"] for state in states]
    now = [type(schedule.scheduler).__qualname__ for schedule in loop.schedules]
    if there != now:
        raise CheckpointError(
            f"{what} is of the schedulers {', '.join(there) or 'none'}; configure_optimizers returns {', '.join(now) or 'none'}"
        )


def apply_schedulers(loop: Loop, states: list[Any]) -> None:
    """Put back what :func:`take_schedulers` took; the optimizers' learning rates are already theirs."""
    for schedule, saved in zip(loop.schedules, states, strict=True):
        schedule.scheduler.load_state_dict(cloned(saved["state"]))


def cloned(value: Any) -> Any:
    """A tree whose containers and tensors nobody else holds."""
    return mapped(value, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)


def _split(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with what is of a parameter's shape split as that parameter is."""
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, its in state["state"].items():
        for name, value in its.items() if isinstance(index, int) and isinstance(its, dict) else ():
            if isinstance(value, Tensor) and value.shape == every[index].shape:
                its[name] = split_as(value, every[index])
    return state


def _mended(now: Any, saved: Any) -> Any:
    """``saved``, with the tensors that were put in their place in ``now`` where those have kept their type."""
    if isinstance(saved, Tensor):
        if not isinstance(now, Tensor):
            return saved
        return now if now.dtype == saved.dtype else saved.to(now.device)
    if isinstance(saved, dict):
        held = now if isinstance(now, dict) else {}
        return type(saved)({key: _mended(held.get(key), part) for key, part in saved.items()})
    if isinstance(saved, (list, tuple, deque)):
        there = list(now) if isinstance(now, (list, tuple, deque)) else []
        parts = [_mended(one, part) for one, part in itertools.zip_longest(there[: len(saved)], saved)]
        return deque(parts, saved.maxlen) if isinstance(saved, deque) else type(saved)(parts)
    return saved


def _difference(there: list[Any], here: list[Any]) -> str:
    for number, (a, b) in enumerate(zip(there, here, strict=False)):
        for at, (one, other) in enumerate(zip(a, b, strict=False)):
            if one != other:
                return f"group {number} has {one} at {at}, and now {other}"
        if len(a) != len(b):
            return f"group {number} has {len(a)} parameters, and now {len(b)}"
    return f"{len(there)} groups, and now {len(here)}"
