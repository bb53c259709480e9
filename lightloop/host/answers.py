"""Hold what plugins answer to what the specification of the hook says that it returns."""

from __future__ import annotations

import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lightloop.host.options import fits


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
        self.is_known = self._type is not Any
        """Whether anything is known of it."""
        self.may_be_none = own is None or not self.is_known
        """Whether None may come out of the hook: never where the loop itself answers."""

    def fits(self, answer: object) -> bool:
        """Whether ``answer`` is of the wanted type, and what is in it as well."""
        return _fits(answer, self._type)

    def refusal(self, who: str, hook: str, answer: object, is_wrapper: bool) -> TypeError:
        """The error for an ``answer`` of a plugin that does not fit."""
        if is_wrapper and answer is None:
            return TypeError(
                f"{who} wraps {hook!r} and returned None in place of the answer: end it with 'return (yield)', or with "
                "'answer = yield' and 'return answer'"
            )
        found = f"{reprlib.repr(answer)} ({type(answer).__name__})"
        if inspect.iscoroutine(answer) or inspect.isgenerator(answer):
            found += "; write a plain function with return, without async and yield"
        return TypeError(f"{who} answered {hook!r} with {found}; it must return {self._in_words()}")

    def _in_words(self) -> str:
        wanted = self.text.removesuffix(" | None")
        return f"{wanted}, or None to leave the answer to others" if wanted != self.text else wanted


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except Exception:  # of names that type checkers alone can resolve; nothing is checked
        return Any


def _fits(value: object, wanted: Any) -> bool:
    kind, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is tuple:
        return isinstance(value, tuple) and (Ellipsis in parts or len(value) == len(parts))
    if kind not in (Iterable, Sequence):
        return fits(value, wanted)
    if isinstance(value, (str, bytes, Mapping)) or hasattr(
        value, "__array__"
    ):  # can be iterated over, and is not meant
        return False
    if kind is Sequence and not isinstance(value, Sequence):
        return False
    if not hasattr(value, "__iter__") and not hasattr(value, "__getitem__"):
        return False
    return parts[0] is Any or not isinstance(value, (list, tuple)) or all(_fits(item, parts[0]) for item in value)
