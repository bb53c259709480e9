"""Optimizers and schedulers as plain trees: taken, compared with what is there now, and put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightloop import Loop
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.modules import parameters, split_as


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
        for key, its in saved["state"]["state"].items():
            if not isinstance(key, int) or not 0 <= key < len(names):
                raise CheckpointError(f"{what}: optimizer {index} has the state of an unknown parameter {key!r}")
            for name, value in its.items() if isinstance(its, Mapping) else ():
                if isinstance(value, Tensor) and value.numel() > max(1, 64 * every[names[key]].numel()):
                    raise CheckpointError(
                        f"{what}: optimizer {index} has {name!r} of shape {list(value.shape)} for {names[key]}"
                    )


def apply_optimizers(loop: Loop, states: list[Any]) -> None:
    """Put back what :func:`take_optimizers` took, with the types that it had."""
    for optimizer, saved in zip(loop.optimizers, states, strict=True):
        state = _split(optimizer, cloned(saved["state"]))
        optimizer.load_state_dict(state)
        _retype(optimizer, state["state"])


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
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return type(value)({key: cloned(part) for key, part in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(cloned(part) for part in value)
    return value


def _split(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with what is of a parameter's shape split as that parameter is."""
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, its in state["state"].items():
        for name, value in its.items() if isinstance(its, dict) else ():
            if isinstance(value, Tensor) and value.shape == every[index].shape:
                its[name] = split_as(value, every[index])
    return state


def _retype(optimizer: Optimizer, saved: Mapping[int, Any]) -> None:
    """Undo what torch does to a state that is of another floating type than its parameter: it casts it."""
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, its in saved.items():
        for name, value in its.items() if isinstance(its, Mapping) else ():
            now = optimizer.state[every[index]].get(name)
            if isinstance(value, Tensor) and isinstance(now, Tensor) and now.dtype != value.dtype:
                optimizer.state[every[index]][name] = value.clone().to(now.device)


def _difference(there: list[Any], here: list[Any]) -> str:
    for number, (a, b) in enumerate(zip(there, here, strict=False)):
        for at, (one, other) in enumerate(zip(a, b, strict=False)):
            if one != other:
                return f"group {number} has {one} at {at}, and now {other}"
        if len(a) != len(b):
            return f"group {number} has {len(a)} parameters, and now {len(b)}"
    return f"{len(there)} groups, and now {len(here)}"
