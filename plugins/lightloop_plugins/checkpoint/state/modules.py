"""The module as a plain tree: taken, compared with what is there now, and put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightloop import Loop
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.state.random_state import check_all, generators_of, set_all, take_all, try_all

Parts = Mapping[str, nn.Module]


def parameters(loop: Loop) -> dict[str, Tensor]:
    """Every parameter by name, those that only an optimizer knows too."""
    named = _first(_parts(loop.module)[1], "_parameters")
    known = {id(parameter) for parameter in named.values()}
    for index, optimizer in enumerate(loop.optimizers):
        for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) not in known:
                known.add(id(parameter))
                named[f"optimizer {index}, parameter {number}"] = parameter
    return named


def every_tensor(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of the module, each by its first name."""
    parts = _parts(module)[1]
    return {**_first(parts, "_parameters"), **_first(parts, "_buffers")}


def first_names(module: nn.Module) -> dict[str, str]:
    """The first name of each parameter and buffer, by every name that it has."""
    first = {id(tensor): name for name, tensor in every_tensor(module).items()}
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first[id(tensor)] for name, tensor in named}


def take_module(loop: Loop, every: dict[str, Tensor]) -> dict[str, Any]:
    """Parameters, all buffers, flags, modes, what is tied to what, and generators; ``every`` is all :func:`parameters`."""
    by_all_names, parts = _parts(loop.module)
    return {
        "parameters": every,
        "buffers": _first(parts, "_buffers"),
        "transient": sorted(_transient(parts)),
        "tied": _tied(by_all_names),
        "requires_grad": {name: parameter.requires_grad for name, parameter in every.items()},
        "training": {name: part.training for name, part in parts.items()},
        "extra": {name: part.get_extra_state() for name, part in _with_extra(parts).items()},
        "generators": take_all(generators_of(parts)),
    }


def fits(loop: Loop, state: Mapping[str, Any]) -> bool:
    """Whether parameters and buffers are of the names, shapes and types that the module has now."""
    try:
        check_tensors(state["parameters"], _saved_of(parameters(loop), state), "parameter", "")
        check_buffers(state, _parts(loop.module)[1], "")
    except CheckpointError:
        return False
    return True


def check_module(loop: Loop, state: Mapping[str, Any], what: str) -> None:
    """Refuse a state that is not of such a module, before anything is changed."""
    every, (by_all_names, parts) = parameters(loop), _parts(loop.module)
    check_tensors(state["parameters"], _saved_of(every, state), "parameter", what)
    check_buffers(state, parts, what)
    if state["tied"] != (tied := _tied(by_all_names)):
        raise CheckpointError(f"{what}: other parameters are tied to one another there: {state['tied']}; now {tied}")
    for kind, names in (("requires_grad", set(every)), ("training", set(parts))):
        if set(state[kind]) != names:
            raise CheckpointError(f"{what}: its {kind} flags are of other parts than the module has")
    if set(state["extra"]) != set(_with_extra(parts)):
        raise CheckpointError(f"{what}: other parts have an extra state there: {', '.join(state['extra'])}")
    check_all(generators_of(parts), state["generators"], what)


def try_generators(loop: Loop, state: Mapping[str, Any]) -> None:
    """Raise what the module's generators would if they were put back; nobody but they can judge their states."""
    try_all(generators_of(_parts(loop.module)[1]), state["generators"])


def apply_module(loop: Loop, state: Mapping[str, Any]) -> None:
    """Put back what :func:`take_module` took, into the tensors that are there."""
    _, parts = _parts(loop.module)
    with torch.no_grad():
        for name, parameter in parameters(loop).items():
            if name in state["parameters"]:
                parameter.copy_(split_as(state["parameters"][name], parameter))
            parameter.requires_grad_(state["requires_grad"][name])
        now = _first(parts, "_buffers")
        for name, saved in state["buffers"].items():
            if name in now and saved.layout is torch.strided and _form(saved) == _form(now[name]):
                now[name].copy_(saved)
            else:  # of those that no state_dict has, or sparse
                part, _, own = name.rpartition(".")
                place = now[name].device if name in now else loop.device
                parts[part].register_buffer(own, saved.clone().to(place), persistent=name not in state["transient"])
    for name, part in parts.items():
        part.training = state["training"][name]
    for name, part in _with_extra(parts).items():
        part.set_extra_state(state["extra"][name])
    set_all(generators_of(parts), state["generators"])


def check_buffers(state: Mapping[str, Any], parts: Parts, what: str) -> None:
    """Refuse other buffers than there are now; those that are in no state_dict may have grown or appeared, such as caches."""
    saved, now, transient = state["buffers"], _saved_of(_first(parts, "_buffers"), state), set(state["transient"])
    free = {name for name in transient & set(saved) if name.rpartition(".")[0] in parts}
    kept = {name: value for name, value in now.items() if name not in free}
    check_tensors({name: value for name, value in saved.items() if name not in free}, kept, "buffer", what)


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
        if is_lazy(tensor):
            raise CheckpointError(
                f"{what}: {kind} {name} is not made yet here: run the module once before it is resumed"
            )
        if _form(saved[name]) != _form(tensor):
            raise CheckpointError(
                f"{what} is of another module: {kind} {name} has shape {list(saved[name].shape)} of {saved[name].dtype} there, "
                f"{list(tensor.shape)} of {tensor.dtype} here"
            )


def _saved_of(now: Mapping[str, Tensor], state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Those that were not left out of the checkpoint."""
    return {name: tensor for name, tensor in now.items() if name not in state.get("left_out", ())}


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype


def split_as(value: Tensor, like: Tensor) -> Tensor:
    """``value``, split over the ranks as ``like`` is; where nothing is split, itself."""
    if not hasattr(like, "to_local"):
        return value
    from lightloop_plugins.checkpoint.sharded.load import placed

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


def _parts(module: nn.Module) -> tuple[Parts, Parts]:
    """Every part of the module under each of its names, and under its first alone."""
    every = dict(module.named_modules(remove_duplicate=False))
    first = {id(part): name for name, part in reversed(every.items())}
    return every, {name: part for name, part in every.items() if first[id(part)] == name}


def _first(parts: Parts, kind: str) -> dict[str, Tensor]:
    """Every parameter or buffer of the parts by its first name, as named_parameters() has them, which is slower."""
    found: dict[int, tuple[str, Tensor]] = {}
    for path, part in parts.items():
        for name, value in getattr(part, kind).items():
            if value is not None:
                found.setdefault(id(value), (f"{path}.{name}" if path else name, value))
    return dict(found.values())


def _tied(by_all_names: Parts) -> dict[str, str]:
    """The names that mean a parameter which has another name already."""
    first: dict[int, str] = {}
    tied = {}
    for path, part in by_all_names.items():
        for own, parameter in part._parameters.items():
            name = f"{path}.{own}" if path else own
            if parameter is not None and first.setdefault(id(parameter), name) != name:
                tied[name] = first[id(parameter)]
    return tied


def _transient(parts: Parts) -> set[str]:
    """The buffers that are in no state_dict."""
    return {f"{path}.{name}".lstrip(".") for path, part in parts.items() for name in part._non_persistent_buffers_set}


def _with_extra(parts: Parts) -> Parts:
    own = nn.Module.get_extra_state
    return {name: part for name, part in parts.items() if type(part).get_extra_state is not own}
