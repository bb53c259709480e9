"""Hold what plugins answer to what the specification of the hook says that it returns."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from lightloop.host.compiled import Check, blame
from lightloop.host.options import fits

F = TypeVar("F", bound=Callable[..., Any])
Refusal = Callable[[object], Exception]
"""Given what was answered: the error that is raised."""


@dataclasses.dataclass(frozen=True)
class Meant:
    """What an answer has to meet beyond the type that the specification of its hook gives; written above it, as ``@meant``."""

    condition: str = ""
    """In terms of ``answer``."""
    words: str = ""
    """The same, as it follows the type in an error."""
    none: bool = False
    """Whether None may come out, also where the loop itself answers."""

    def __call__(self, specification: F) -> F:
        """Say it of ``specification``."""
        specification.meant = self  # type: ignore[attr-defined]
        return specification


class Wanted:
    """What a hook wants to be answered, as its specification annotates it.

    Args:
        specification: the function that specifies the hook.
        own: the loop's own answer, if there is one; what the specification imports for type checkers alone is found there.
    """

    def __init__(self, specification: Callable[..., Any], own: Callable[..., Any] | None) -> None:
        self.text = str(specification.__annotations__.get("return", "Any"))
        names = {**(own.__globals__ if own else {}), **specification.__globals__}
        self._type = _resolved(specification.__annotations__.get("return", Any), names)
        meant: Meant = getattr(specification, "meant", Meant())
        self.may_be_none = own is None or meant.none
        """Whether None may come out of the hook: hardly ever where the loop itself answers."""
        self.is_known = self._type is not Any or not self.may_be_none
        """Whether anything is known of it."""
        self.condition, self._in_addition = meant.condition, meant.words
        """What ``answer`` has to meet beyond its type."""
        self._meets = eval(f"lambda answer: {self.condition or True}")

    def fits(self, answer: object) -> bool:
        """Whether ``answer`` is of the wanted type, and what is in it as well."""
        if answer is None:
            return self.may_be_none
        return _fits(answer, self._type) and bool(self._meets(answer))

    def held(self, answer: Any, refusal: Refusal) -> Any:
        """``answer``, which fits; the first of what it gives one after another is looked at when it comes."""
        parts = typing.get_args(_not_none(self._type))
        if (
            typing.get_origin(_not_none(self._type)) is not Iterable
            or parts[0] is Any
            or isinstance(answer, (list, tuple))
        ):
            return answer
        return itertools.chain.from_iterable(_held(answer, parts[0], refusal))

    def refusal(self, who: str, hook: str, answer: object, is_wrapper: bool) -> TypeError:
        """The error for an ``answer`` of a plugin that does not fit."""
        if is_wrapper and answer is None:
            return TypeError(
                f"{who} wraps {hook!r} and returned None in place of the answer: end it with 'return (yield)', or with "
                "'answer = yield' and 'return answer'"
            )
        wrong = _first_wrong(answer) if _is(answer, _not_none(self._type)) else ""
        return TypeError(f"{who} answered {hook!r} with {in_words(answer)}{wrong}; it must return {self._in_words()}")

    def refusal_of_item(self, who: str, hook: str, item: object) -> TypeError:
        """The error for an answer whose first ``item`` does not fit."""
        return TypeError(
            f"{who} answered {hook!r} with what gives {in_words(item)} first; it must return {self._in_words()}"
        )

    def _in_words(self) -> str:
        wanted = self.text.removesuffix(" | None")
        exact = f"{wanted}{self._in_addition}"
        return f"{exact}, or None to leave the answer to others" if wanted != self.text else exact


def check_for(hook: str, impl: Any, wanted: Wanted, disable: Callable[[Exception], None]) -> Check:
    """How the answers of ``impl`` are held to what is ``wanted``.

    Args:
        hook: what is answered.
        impl: a plugin's implementation.
        wanted: as the hook is specified.
        disable: told of a wrong answer by a plugin that may fail.
    """
    known: set[type] = set()

    def late(item: object) -> Exception:
        error = wanted.refusal_of_item(impl.plugin.label, hook, item)
        blame(error, hook, impl)
        return error

    def check(answer: Any) -> Any:
        if wanted.fits(answer):
            held = wanted.held(answer, late)
            if held is answer:
                known.add(type(answer))
            return held
        error = wanted.refusal(impl.plugin.label, hook, answer, impl.wrapper)
        if impl.wrapper:
            blame(error, hook, impl)
        if impl.wrapper or impl.plugin.on_failure == "stop":
            raise error
        disable(error)
        return None

    return Check(known, check, wanted.condition)


def _is(answer: object, kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(answer, kind)


def _first_wrong(answer: Any) -> str:
    """Which field of a dataclass does not fit, in words."""
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if not _fits(value, typing.get_type_hints(type(answer))[field.name]):
            return f", whose {field.name!r} must be {field.type} and is {in_words(value)}"
    return ""


def in_words(answer: object) -> str:
    """What was answered, and of which type it is."""
    found = f"{reprlib.repr(answer)} ({type(answer).__name__})"
    if inspect.iscoroutine(answer) or inspect.isgenerator(answer):
        found += "; write a plain function with return, without async and yield"
    return found


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except Exception:  # of names that type checkers alone can resolve; nothing is checked
        return Any


def _not_none(wanted: Any) -> Any:
    """The one type beside None, where there is one."""
    others = [part for part in typing.get_args(wanted) if part is not types.NoneType]
    return others[0] if typing.get_origin(wanted) in (typing.Union, types.UnionType) and len(others) == 1 else wanted


def _held(items: Iterable[Any], wanted: Any, refusal: Refusal) -> Iterator[Iterable[Any]]:
    rest = iter(items)
    for first in rest:
        if not _fits(first, wanted):
            raise refusal(first)
        yield (first,)
        del first  # what was trained on is free
        yield rest
        return


def _fits(value: object, wanted: Any) -> bool:
    kind, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is tuple:
        if not isinstance(value, tuple) or Ellipsis in parts:
            return isinstance(value, tuple)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if kind is list:
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    if _is(value, wanted):
        return not _first_wrong(value)
    if kind not in (Iterable, Sequence):
        return fits(value, wanted)
    if isinstance(value, (str, bytes, Mapping)) or _is_tensor(value):  # can be iterated over, and is not meant
        return False
    if kind is Sequence and not isinstance(value, Sequence):
        return False
    if not hasattr(value, "__iter__") and not hasattr(value, "__getitem__"):
        return False
    return parts[0] is Any or not isinstance(value, (list, tuple)) or all(_fits(item, parts[0]) for item in value)


def _is_tensor(value: object) -> bool:
    """Whether it is a tensor; torch, which the host does not import, has one base class for all of them."""
    return any((kind.__module__, kind.__name__) == ("torch", "Tensor") for kind in type(value).__mro__)
