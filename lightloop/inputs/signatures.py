"""Call the functions that users write with what their signatures ask for: by name where the name is known, else by position."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightloop.loop import Loop

Step = Callable[["Loop"], Any]


@dataclass(frozen=True, eq=False)
class Fixed:
    """An argument that is the same throughout the run. Only a parameter that needs a value takes it by position."""

    value: Any


Argument = str | Fixed | Callable[["Loop"], Any]
"""Where an argument comes from: an attribute path such as "loop.piece", a fixed value, or a function of the loop."""

PATH = re.compile(r"loop(\.[A-Za-z_]\w*)*")


def defined(module: object, name: str) -> Callable[..., Any] | None:
    """Return the method ``name`` of ``module`` if the user defined it; a method that is None counts as undefined."""
    method: Callable[..., Any] | None = getattr(module, name, None)
    if method is None:
        return None
    if not callable(method):
        raise TypeError(f"{type(module).__name__}.{name} must be a function; it is {type(method).__name__}")
    return method


def bind(
    function: Callable[..., Any],
    order: Sequence[str],
    arguments: Mapping[str, Argument],
    needs: Sequence[str] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> Step:
    """A function of the loop that calls ``function``, whose signature is looked at here, once.

    * A parameter whose name is in ``arguments`` gets that argument, wherever it stands.
    * Another parameter is filled by position, from the names in ``order``: with the name at its own place, or with the
      first name that no other parameter takes. Where these two readings differ, an error asks for the name.
    * A parameter of another name that has a default keeps it. Where the default could be an index (None, a whole number)
      and there is an argument for its place, an error asks which of the two is meant.
    * ``*args`` gets the rest of ``order``. ``**kwargs`` gets all of ``arguments`` that no other parameter takes; beside
      ``*args`` it gets nothing, so that ``super().training_step(*args, **kwargs)`` works.

    A function written in C that has no signature gets all of ``order``.

    Args:
        function: the user's function or method.
        order: names of ``arguments`` in the order in which they are given by position.
        arguments: every argument that there is, by name. Names of one argument object are aliases.
        needs: what ``function`` has to take.
        elsewhere: names that mean an argument in other runs and are therefore never filled by position, each with why it is
            not there.

    Raises:
        TypeError: if a parameter cannot be given, or could be given in two ways; the message says what to write.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return _compiled(function, [arguments[name] for name in order], {}, order)
    binding = _Binding(function, signature, order, arguments)
    binding.refuse_absent(elsewhere or {})
    binding.fill_places(needs)
    return binding.compiled(needs)


def takes(step: Step, name: str) -> bool:
    """Whether the user's function behind ``step``, a result of :func:`bind` (``loop.user_step``), takes ``name``."""
    return name in step.given  # type: ignore[attr-defined]


class _Binding:
    """What each parameter of one function is given."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: inspect.Signature,
        order: Sequence[str],
        arguments: Mapping[str, Argument],
    ) -> None:
        self.function, self.signature, self.order, self.arguments = function, signature, order, arguments
        parameters = list(signature.parameters.values())
        self.placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.named_rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.given = {p.name: p.name for p in (*self.placed, *self.keyword) if p.name in arguments}
        """By parameter: the name of its argument."""

    def refuse_absent(self, elsewhere: Mapping[str, str]) -> None:
        for parameter in (*self.placed, *self.keyword):
            name = parameter.name
            if name in self.given or parameter.default is not parameter.empty:
                continue
            if name in elsewhere or parameter in self.keyword:
                raise self.refusal(
                    f"there is no argument {name!r}{f': {elsewhere[name]}' if name in elsewhere else ''}"
                )

    def compiled(self, needs: Sequence[str]) -> Step:
        parts = [self.source(p) for p in self.placed]
        rest = self.left() if self.rest and None not in parts else []
        while parts and parts[-1] is None:  # defaults that the function keeps by itself
            parts.pop()
        # A default between two arguments that go by position is passed on as it is.
        by_place = [Fixed(p.default) if part is None else part for p, part in zip(self.placed, parts, strict=False)]
        by_place += [self.arguments[name] for name in rest if not isinstance(self.arguments[name], Fixed)]
        by_name = {p.name: self.arguments[p.name] for p in self.keyword if p.name in self.given}
        if self.named_rest and not self.rest:
            by_name |= {name: self.arguments[name] for name in self.left((*self.order, *self.arguments))}
        used = {*by_place, *by_name.values()}
        given = [name for name, argument in self.arguments.items() if argument in used]
        for name in needs:
            if name not in given:
                raise self.refusal(f"it must take {name}")
        return _compiled(self.function, by_place, by_name, given)

    def fill_places(self, needs: Sequence[str]) -> None:
        """Give the parameters whose names are not known what belongs at their places."""
        left = self.left()
        unknown = [p for p in self.placed if p.name not in self.given]
        wanting = [p for p in unknown if p.default is p.empty]
        places = [self.placed.index(p) for p in wanting]
        own = [self.order[place] for place in places if place < len(self.order) and self.order[place] in left]
        readings = [names for names in (own, left[: len(wanting)]) if self.serves(names, wanting, needs)]
        if not readings:
            missing = wanting[len(left) :]
            raise self.refusal(
                f"there is no argument for {missing[0].name!r}" if missing else f"it must take {needs[0]}"
            )
        if readings[0] != readings[-1]:
            which = next(i for i, (one, other) in enumerate(zip(*readings, strict=True)) if one != other)
            one, other = readings[0][which], readings[1][which]
            raise self.refusal(
                f"{wanting[which].name!r} can be {one} by its place, or {other}, which no other parameter takes: "
                "give it the name of what it is"
            )
        self.given |= {p.name: name for p, name in zip(wanting, readings[0], strict=True)}
        left = [name for name in self.left() if not isinstance(self.arguments[name], Fixed)]
        for parameter, name in zip([p for p in unknown if p not in wanting], left, strict=False):
            default = parameter.default
            if default is None or (isinstance(default, int) and not isinstance(default, bool)):
                raise self.refusal(
                    f"{parameter.name!r} can be {name} by its place, or keep {default!r}: call it {name}, or write "
                    f"'*, {parameter.name}={default!r}' at the end to keep the default"
                )

    def serves(self, names: Sequence[str], wanting: Sequence[inspect.Parameter], needs: Sequence[str]) -> bool:
        """Whether ``names`` is one argument for each of ``wanting``, with which ``needs`` are met."""
        taken = {self.arguments[name] for name in (*self.given.values(), *names)}
        met = self.rest or self.named_rest or all(self.arguments[name] in taken for name in needs)
        return len(names) == len(wanting) and met

    def left(self, names: Sequence[str] | None = None) -> list[str]:
        """Those of ``names``, by default of ``order``, whose argument no parameter takes, each argument once."""
        taken = {self.arguments[name] for name in self.given.values()}
        left: dict[Argument, str] = {}
        for name in self.order if names is None else names:
            if self.arguments[name] not in taken:
                left.setdefault(self.arguments[name], name)
        return list(left.values())

    def source(self, parameter: inspect.Parameter) -> Argument | None:
        return self.arguments[self.given[parameter.name]] if parameter.name in self.given else None

    def refusal(self, what: str) -> TypeError:
        name = getattr(self.function, "__qualname__", repr(self.function))
        spellings: dict[Argument, str] = {}
        for each in (*self.order, *self.arguments):
            spellings.setdefault(self.arguments[each], each)
        by_name = [each for each in spellings.values() if each not in self.order]
        also = f"; by name also {', '.join(by_name)}" if by_name else ""
        return TypeError(
            f"{name}{self.signature} cannot be called: {what}. It can take ({', '.join(self.order)}) by position or by "
            f"name{also}"
        )


def _compiled(
    function: Callable[..., Any], by_place: Sequence[Argument], by_name: Mapping[str, Argument], given: Sequence[str]
) -> Step:
    """A function of the loop that has the arguments' paths in its source, as one would write it by hand."""
    space: dict[str, Any] = {"function": function}

    def source(argument: Argument) -> str:
        if isinstance(argument, str):
            if not PATH.fullmatch(argument):
                raise ValueError(
                    f"an argument comes from an attribute path such as 'loop.piece', or from a function of the loop; "
                    f"{argument!r} is no path"
                )
            return argument
        name = f"get{len(space)}"
        space[name] = argument.value if isinstance(argument, Fixed) else argument
        return name if isinstance(argument, Fixed) else f"{name}(loop)"

    parts = [source(argument) for argument in by_place]
    parts += [f"{name}={source(argument)}" for name, argument in by_name.items()]
    step = eval(f"lambda loop: function({', '.join(parts)})", space)
    step.given = frozenset(given)
    return step  # type: ignore[no-any-return]


__all__ = ["Argument", "Fixed", "Step", "bind", "defined", "takes"]
