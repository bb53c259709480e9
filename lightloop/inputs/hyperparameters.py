"""What a module keeps of the arguments that it was made with, so that it can be made again with them."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType, SimpleNamespace
from typing import Any

SAVE = "save_hyperparameters"


class Hyperparameters(dict[str, Any]):
    """A mapping whose values are attributes too: ``module.hparams.lr``."""

    sources: Mapping[str, Sequence[Any]] = MappingProxyType({})
    """The arguments of the constructor whose entries are kept in their place: of what kind each is (mapping, namespace), and the names."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no hyperparameter {name!r}; there are {', '.join(self)}") from None


def saves(kind: type) -> bool:
    """Whether a constructor of ``kind``, or of a base of it, names :meth:`Module.save_hyperparameters`."""
    made = (inspect.unwrap(vars(each)["__init__"]) for each in kind.__mro__ if "__init__" in vars(each))
    return any(SAVE in getattr(getattr(one, "__code__", None), "co_names", ()) for one in made)


def given_to(constructor: Callable[..., Any], *arguments: Any, **keywords: Any) -> dict[str, Any]:
    """What ``constructor`` is about to be called with, by name, defaults too; containers as they are now."""
    try:
        signature = inspect.signature(constructor)
        bound = signature.bind(*arguments, **keywords)
    except (TypeError, ValueError):  # which the call itself will say
        return {}
    bound.apply_defaults()
    given: dict[str, Any] = {}
    for (name, parameter), value in list(zip(signature.parameters.items(), bound.arguments.values(), strict=True))[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= value
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            given[name] = value
    return {name: copied(value) for name, value in given.items()}


def callers(frame: FrameType | None, made: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The methods of ``made`` in which this is called, from the inside out to its outermost constructor, and their arguments.

    They are told by their names, with what the arguments are now.
    """
    while frame is not None and (found := _arguments(frame, made)) is not None:
        yield frame.f_code.co_name, found
        frame = frame.f_back
        if frame is not None and frame.f_code.co_name != "__init__":
            return


def _arguments(frame: FrameType, made: object) -> dict[str, Any] | None:
    taken = inspect.getargvalues(frame)
    if not taken.args or taken.locals.get(taken.args[0]) is not made:
        return None
    given = {name: taken.locals[name] for name in taken.args[1:] if name in taken.locals}
    return given | (taken.locals[taken.keywords] if taken.keywords else {})


def entries_of(value: object) -> dict[str, Any] | None:
    """What is in a mapping, a namespace or a dataclass, by name; None for anything else."""
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value)) if isinstance(value, (argparse.Namespace, SimpleNamespace)) else None


def copied(value: Any) -> Any:
    """``value`` with containers of its own; what is in them, and is none, is shared."""
    if isinstance(value, tuple):
        parts = [copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts) if type(value) is tuple else value
    if isinstance(value, (dict, list, deque)):
        own = copy.copy(value)
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            own[key] = copied(part)
        return own
    if isinstance(value, (set, bytearray)):
        return copy.copy(value)
    if isinstance(value, Mapping) or (parts_of := entries_of(value)) is None:
        return value
    own = copy.copy(value)
    for name, part in parts_of.items():
        object.__setattr__(own, name, copied(part))  # a dataclass may be frozen
    return own
