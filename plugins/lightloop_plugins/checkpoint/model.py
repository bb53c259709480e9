"""The module and its optimizers as plain trees: taken, compared with what is there now, and put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightloop import Loop
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.random_state import check_all, generators_of, set_all, take_all


def parameters(loop: Loop) -> dict[str, Tensor]:
    """Every parameter by name, those that only an optimizer knows too."""
    named: dict[str, Tensor] = dict(loop.module.named_parameters())
    known = {id(parameter) for parameter in named.values()}
    for index, optimizer in enumerate(loop.optimizers):
        for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) not in known:
                known.add(id(parameter))
                named[f"optimizer {index}, parameter {number}"] = parameter
    return named


def take_module(loop: Loop) -> dict[str, Any]:
    """Parameters, all buffers, flags, modes, what is tied to what, and generators."""
    module = loop.module
    every = parameters(loop)
    return {
        "parameters": every,
        "buffers": dict(module.named_buffers()),
        "transient": sorted(_transient(module)),
        "tied": _tied(module),
        "requires_grad": {name: parameter.requires_grad for name, parameter in every.items()},
        "training": {name: part.training for name, part in module.named_modules()},
        "extra": {name: part.get_extra_state() for name, part in _with_extra(module).items()},
        "generators": take_all(generators_of(module)),
    }


def check_module(loop: Loop, state: Mapping[str, Any], what: str) -> None:
    """Refuse a state that is not of such a module, before anything is changed."""
    check_tensors(state["parameters"], parameters(loop), "parameter", what)
    check_tensors(state["buffers"], dict(loop.module.named_buffers()), "buffer", what)
    if dict(state["tied"]) != _tied(loop.module):
        raise CheckpointError(
            f"{what}: other parameters are tied to one another there: {state['tied']}; now {_tied(loop.module)}"
        )
    for kind, now in (("requires_grad", parameters(loop)), ("training", dict(loop.module.named_modules()))):
        if set(state[kind]) != set(now):
            raise CheckpointError(f"{what}: its {kind} flags are of other parts than the module has")
    if set(state["extra"]) != set(_with_extra(loop.module)):
        raise CheckpointError(f"{what}: other parts have an extra state there: {', '.join(state['extra'])}")
    check_all(generators_of(loop.module), state["generators"], what)


def apply_module(loop: Loop, state: Mapping[str, Any]) -> None:
    """Put back what :func:`take_module` took, into the tensors that are there."""
    with torch.no_grad():
        for name, parameter in parameters(loop).items():
            parameter.copy_(split_as(state["parameters"][name], parameter))
            parameter.requires_grad_(state["requires_grad"][name])
        for name, buffer in loop.module.named_buffers():
            buffer.copy_(state["buffers"][name])
    for name, part in loop.module.named_modules():
        part.training = state["training"][name]
    for name, part in _with_extra(loop.module).items():
        part.set_extra_state(state["extra"][name])
    set_all(generators_of(loop.module), state["generators"])


def check_tensors(saved: Mapping[str, Tensor], now: Mapping[str, Tensor], kind: str, what: str) -> None:
    """Refuse other names, shapes or types than there are now."""
    missing, odd = sorted(set(now) - set(saved)), sorted(set(saved) - set(now))
    if missing or odd:
        found = [f"without {', '.join(missing[:5])}"] * bool(missing) + [f"with {', '.join(odd[:5])}"] * bool(odd)
        raise CheckpointError(
            f"{what} is of another module: {' and '.join(found)} ({len(missing)} {kind}s missing, {len(odd)} unknown). "
            "Build the module as it was, or load the weights alone"
        )
    for name, tensor in now.items():
        if saved[name].shape != tensor.shape or saved[name].dtype != tensor.dtype:
            raise CheckpointError(
                f"{what} is of another module: {kind} {name} has shape {list(saved[name].shape)} of {saved[name].dtype} there, "
                f"{list(tensor.shape)} of {tensor.dtype} here"
            )


def take_optimizers(loop: Loop) -> list[dict[str, Any]]:
    """Each optimizer's state, with the names of the parameters of its groups."""
    names = {id(parameter): name for name, parameter in parameters(loop).items()}
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
    now = take_optimizers(loop)
    if [state["class"] for state in states] != [state["class"] for state in now]:
        raise CheckpointError(
            f"{what} is of the optimizers {', '.join(state['class'] for state in states) or 'none'}; configure_optimizers "
            f"returns {', '.join(state['class'] for state in now) or 'none'}"
        )
    every = parameters(loop)
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


def split_as(value: Tensor, like: Tensor) -> Tensor:
    """``value``, split over the ranks as ``like`` is; where nothing is split, itself."""
    if not hasattr(like, "to_local"):
        return value
    from lightloop_plugins.checkpoint.resharded import placed

    return placed(value, like)


def split_by_name(tree: Any, every: Mapping[str, Tensor]) -> Any:
    """``tree`` with each tensor that is under the name of a parameter, and of its shape, split as that one is."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(split_by_name(part, every) for part in tree)
    if not isinstance(tree, dict):
        return tree
    made = {name: split_by_name(part, every) for name, part in tree.items()}
    for name, part in made.items():
        if isinstance(part, Tensor) and name in every and part.shape == every[name].shape:
            made[name] = split_as(part, every[name])
    return type(tree)(made)


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


def _tied(module: nn.Module) -> dict[str, str]:
    """The names that mean a parameter which has another name already."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    return tied


def _transient(module: nn.Module) -> set[str]:
    """The buffers that are in no state_dict."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }


def _with_extra(module: nn.Module) -> dict[str, nn.Module]:
    own = nn.Module.get_extra_state
    return {name: part for name, part in module.named_modules() if type(part).get_extra_state is not own}


def _difference(there: list[Any], here: list[Any]) -> str:
    for number, (a, b) in enumerate(zip(there, here, strict=False)):
        for at, (one, other) in enumerate(zip(a, b, strict=False)):
            if one != other:
                return f"group {number} has {one} at {at}, and now {other}"
        if len(a) != len(b):
            return f"group {number} has {len(a)} parameters, and now {len(b)}"
    return f"{len(there)} groups, and now {len(here)}"
