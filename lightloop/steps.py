"""Call a user's step function with just the arguments that its signature names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightloop.loop import Loop

Argument = Callable[["Loop"], Any]
Step = Callable[["Loop"], Any]


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
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters) and not positional:
        get_batch, get_index = arguments["batch"], arguments["batch_idx"]
        return lambda loop: step(get_batch(loop), get_index(loop))
    if not positional:
        raise TypeError(f"{name} must take the batch as its first argument; it takes {inspect.signature(step)}")
    get_batch = arguments["batch"]
    by_name = {}
    for parameter in parameters:
        if parameter is positional[0] or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in arguments:
            by_name[parameter.name] = arguments[parameter.name]
        elif parameter.default is parameter.empty:
            raise TypeError(f"{name} wants the argument {parameter.name!r}; what it can have is {', '.join(arguments)}")
    if not by_name:
        return lambda loop: step(get_batch(loop))
    if list(by_name) == ["batch_idx"] and len(positional) > 1 and positional[1].name == "batch_idx":
        get_index = by_name["batch_idx"]
        return lambda loop: step(get_batch(loop), get_index(loop))
    return lambda loop: step(get_batch(loop), **{key: get(loop) for key, get in by_name.items()})
