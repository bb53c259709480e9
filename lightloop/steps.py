"""Call a user's step function with just the arguments that its signature names, and read what it returns."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightloop.gradients import Weight

if TYPE_CHECKING:
    from lightloop.loop import Loop

Step = Callable[["Loop"], Any]
Argument = str | Callable[["Loop"], Any]
"""How an argument is found: an expression of ``loop`` such as "loop.piece", or a function of it."""


def defined(module: object, name: str) -> Callable[..., Any] | None:
    """The method ``name`` of ``module`` if the user really defined it; None is as good as absent."""
    method: Callable[..., Any] | None = getattr(module, name, None)
    if method is None:
        return None
    if not callable(method):
        raise TypeError(f"{type(module).__name__}.{name} must be a function; it is {type(method).__name__}")
    return method


def bind(step: Callable[..., Any], arguments: Mapping[str, Argument]) -> Step:
    """A function of the loop that calls ``step``; its signature is looked at here, once, and never again.

    The first parameter is the batch, whatever it is called. Every other one is found by its name in ``arguments``; one
    that is not there must have a default, which it then keeps.

    Raises:
        TypeError: if a parameter cannot be given; the message has the names that can.
    """
    name = getattr(step, "__qualname__", repr(step))
    parameters = list(inspect.signature(step).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not positional and not rest:
        raise TypeError(f"{name} must take the batch as its first argument; it takes {inspect.signature(step)}")
    given = [arguments["batch"]] if positional else [arguments["batch"], arguments["batch_idx"]]
    if positional and positional[0].name in {*arguments} - {"batch"}:
        raise TypeError(f"{name} must take the batch as its first argument, not {positional[0].name!r}")
    by_name = {}
    for parameter in parameters:
        if parameter in positional[:1] or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in arguments and parameter.kind is parameter.POSITIONAL_ONLY:
            given.append(arguments[parameter.name])
        elif parameter.name in arguments:
            by_name[parameter.name] = arguments[parameter.name]
        elif parameter.default is parameter.empty:
            raise TypeError(f"{name} wants the argument {parameter.name!r}; what it can have is {', '.join(arguments)}")
    return _caller(step, given, by_name)


def bind_call(function: Callable[..., Any], order: Sequence[str], arguments: Mapping[str, Argument]) -> Step:
    """A function of the loop that calls ``function``, a hook of the user's, with what its signature has room for.

    Where ``arguments`` has every parameter that needs a value, they go by name, in whatever order the user wrote them.
    Else they go by position: those of ``order``, as many as there is room for, whatever the user calls them.

    Raises:
        TypeError: if neither serves; the message has the names that can be given.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # one written in C may have no signature to look at
        return _caller(function, [arguments[name] for name in order], {})
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = [p for p in (*placed, *named) if p.default is p.empty]
    if not rest and all(p in named and p.name in arguments for p in needed):
        return _caller(function, [], {p.name: arguments[p.name] for p in named if p.name in arguments})
    if sum(p.default is p.empty for p in placed) > len(order) or any(p not in placed for p in needed):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name}{inspect.signature(function)} wants more than it can have: {', '.join(arguments)}")
    given = order if rest else order[: len(placed)]
    return _caller(function, [arguments[name] for name in given], {})


def _caller(step: Callable[..., Any], given: Sequence[Argument], by_name: Mapping[str, Argument]) -> Step:
    """A function of the loop that has the arguments' expressions in its source, as one would write it by hand."""
    space: dict[str, Any] = {"step": step}

    def source(argument: Argument) -> str:
        if isinstance(argument, str):
            return argument
        space[f"get{len(space)}"] = argument
        return f"get{len(space) - 1}(loop)"

    parts = [source(argument) for argument in given]
    parts += [f"{name}={source(argument)}" for name, argument in by_name.items()]
    return eval(f"lambda loop: step({', '.join(parts)})", space)  # type: ignore[no-any-return]


def read_output(output: Any, wanted: bool = True) -> tuple[Tensor | None, Weight | None]:
    """The loss and the weight in what ``training_step`` returned: a tensor, a mapping with ``loss``, or None.

    Raises:
        TypeError, ValueError: if a loss is ``wanted`` and this is none that can be differentiated.
    """
    loss, weight = output, None
    if not isinstance(output, Tensor) and isinstance(output, Mapping):
        if wanted and "loss" not in output:
            raise ValueError(
                f"training_step returned a mapping without 'loss'; its keys are {', '.join(map(str, output))}"
            )
        loss, weight = output.get("loss"), output.get("weight")
    if loss is None or not wanted:
        return None, None
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"training_step must return a tensor, a mapping with 'loss', or None; it returned {type(loss).__name__}"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"the loss must be one number; training_step returned shape {tuple(loss.shape)}. Take its mean"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss needs no gradient: it does not depend on a parameter that requires one. Look for .detach(), .item(), "
            "torch.no_grad() or frozen parameters on its way"
        )
    return loss, None if weight is None else _read_weight(weight)


def _read_weight(weight: Any) -> Weight:
    if isinstance(weight, Tensor) and weight.numel() == 1:
        return weight.detach().reshape(())
    if isinstance(weight, (int, float, Fraction)) and not isinstance(weight, bool) and 0 <= weight < math.inf:
        return weight
    found = f"a tensor of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else repr(weight)
    raise ValueError(
        f"the weight that training_step returns must be one number from 0, such as how many tokens were scored; it is {found}"
    )
