"""That the state of an optimizer can be loaded, which is found out when it is saved: at the first time of each form."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.schema import RUN, check_form
from lightloop_plugins.checkpoint.format.tree import decode, encode, mapped
from lightloop_plugins.checkpoint.state.optimizers import load

_PROVED: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
"""The outline of each optimizer's state that has been proved."""
_SEEN = (str, bytes, bool, type(None))
"""What is told apart by its value."""


def prove(optimizers: Sequence[Optimizer], taken: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state that would not come back as it is: each optimizer's is loaded into a twin, with no tensor copied.

    Raises:
        CheckpointError: it names the optimizer, and what of its state is lost.
    """
    for index, (optimizer, state) in enumerate(zip(optimizers, taken, strict=True)):
        form = hash(_outline(state["state"]))
        if _PROVED.get(optimizer) != form:
            _prove(optimizer, state, f"optimizer {index} ({type(optimizer).__name__})")
            _PROVED[optimizer] = form


def _prove(optimizer: Optimizer, taken: Mapping[str, Any], who: str) -> None:
    tensors: dict[str, Tensor] = {}
    try:
        stored = decode(encode(taken, tensors), tensors)
        check_form(stored, RUN["optimizers"][0], "its state")
        _compare(taken["state"], stored["state"])
        if (twin := _twin(optimizer)) is not None:
            load(twin, stored["state"])
            _compare(taken["state"], twin.state_dict())
    except CheckpointError as error:
        raise CheckpointError(f"{who} cannot be resumed, and nothing is saved: {error}") from error
    except Exception as error:
        raise CheckpointError(
            f"{who} cannot be resumed, and nothing is saved: its load_state_dict refuses what its state_dict gives: "
            f"{type(error).__name__}: {error}"
        ) from error


def _twin(optimizer: Optimizer) -> Optimizer | None:
    """A copy of ``optimizer`` that shares its tensors, if it can be copied."""
    memo: dict[int, Any] = {}

    def share(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            memo[id(leaf)] = leaf
        return leaf

    mapped(dict(enumerate(optimizer.state)), share)
    mapped(list(optimizer.state.values()), share)
    mapped([list(group.values()) for group in optimizer.param_groups], share)
    try:
        twin = copy.deepcopy(optimizer, memo)
        memo[id(optimizer)] = twin
        for name, value in vars(optimizer).items():  # what an optimizer leaves out of its copies
            if name not in vars(twin):
                vars(twin)[name] = copy.deepcopy(value, memo)
    except Exception:  # a lock, a file, a part of another library: then it is what is stored that is proved
        return None
    return twin


def _compare(before: Any, after: Any) -> None:
    there, here = dict(_forms(before, ())), dict(_forms(after, ()))
    for path in {**there, **here}:
        if there.get(path) != here.get(path):
            name = ".".join(map(str, path)) or "it"
            raise CheckpointError(
                f"{name} is {there.get(path, 'absent')}, and comes back as {here.get(path, 'absent')}"
            )


def _outline(value: Any) -> Any:
    """What differs where :func:`_forms` do, and can be hashed. It is made at each save, and takes a fifth of their time."""
    kind = type(value)
    if kind is dict or isinstance(value, Mapping):
        return kind, tuple([(key, _tensor(v) if type(v) is Tensor else _outline(v)) for key, v in value.items()])
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple, deque)):
        return kind, getattr(value, "maxlen", None), tuple([_outline(part) for part in value])
    return kind, value if isinstance(value, _SEEN) else None


def _tensor(value: Tensor) -> Any:
    return value.dtype, value.shape, value.layout


def _forms(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The form of everything in a tree, by its path."""
    kind = type(value).__name__
    if isinstance(value, Tensor):
        yield path, f"a tensor of {value.dtype} {list(value.shape)} {str(value.layout).removeprefix('torch.')}"
    elif isinstance(value, Mapping):
        yield path, kind
        for key, part in value.items():
            yield from _forms(part, (*path, key))
    elif isinstance(value, (list, tuple, deque)):
        kind = "tuple" if isinstance(value, torch.Size) else kind
        yield path, f"{kind} of at most {value.maxlen}" if isinstance(value, deque) else kind
        for number, part in enumerate(value):
            yield from _forms(part, (*path, number))
    elif isinstance(value, _SEEN):
        yield path, repr(value)
    else:  # a subclass of a number comes back as a number
        yield path, next((each.__name__ for each in (int, float) if isinstance(value, each)), kind)
