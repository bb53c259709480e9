"""Functions that call the implementations of one hook, and note on an exception whose it is."""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import Any, Literal

OWN = "loop"
"""The name under which the loop's own answers are registered."""
Answers = Literal["first", "all", "none"]
"""What is wanted of the answers to a hook."""
LINES: dict[Answers, str] = {
    "first": "if (answer := {}) is not None: return answer",
    "all": "if (answer := {}) is not None: answers.append(answer)",
    "none": "{}",
}


def blame(error: BaseException, hook: str, impl: Any) -> None:
    """Note on ``error`` in which plugin and hook it was raised."""
    if impl.plugin_name != OWN:
        error.add_note(f"in {hook} of {impl.plugin.label}")


def in_turn(
    name: str,
    arguments: Sequence[str],
    impls: Sequence[Any],
    functions: Sequence[Callable[..., Any]],
    answers: Answers,
) -> Callable[..., Any]:
    """A function that calls ``functions``, those of ``impls``, one after another and gives what is wanted of their answers.

    Each call has a line of its own, by which the plugin is found that an exception comes from.
    """
    calls = [f"f{index}({', '.join(impl.argnames)})" for index, impl in enumerate(impls)]
    lines = [f"  {LINES[answers].format(call)}" for call in calls]
    head = [f"def {name}({', '.join(arguments)}):", *([" answers = []"] if answers == "all" else []), " try:"]
    foot = [" except BaseException as error:", "  fault(error)", "  raise"]
    end = [" return answers"] if answers == "all" else []

    def fault(error: BaseException) -> None:
        assert error.__traceback__ is not None
        blame(error, name, impls[error.__traceback__.tb_lineno - len(head) - 1])

    space: dict[str, Any] = {f"f{index}": function for index, function in enumerate(functions)} | {"fault": fault}
    exec(_code("\n".join([*head, *(lines or ["  pass"]), *foot, *end]), f"<hook {name}>"), space)
    return space[name]  # type: ignore[no-any-return]


@cache
def _code(source: str, name: str) -> types.CodeType:
    """``source`` compiled under a name of its own, by which tracebacks and debuggers find its lines."""
    name = name if name not in linecache.cache else f"{name[:-1]} {len(linecache.cache)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec")


def around(name: str, impl: Any, function: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    """``inner`` surrounded by the wrapper ``impl``, whose generator ``function`` yields once.

    An error that a wrapper raises by accident while another is on its way is noted on that one; it takes its place only
    if the wrapper says ``raise ... from``.
    """

    def call(**given: Any) -> Any:
        wrapper: Generator[None, Any, Any] = function(*(given[argument] for argument in impl.argnames))
        try:
            next(wrapper)
        except StopIteration:
            raise _misuse(name, impl, "did not yield") from None
        except BaseException as error:
            blame(error, name, impl)
            raise
        try:
            result = inner(**given)
        except BaseException as error:
            return _unwind(name, impl, wrapper, error)
        try:
            wrapper.send(result)
        except StopIteration as stop:
            return stop.value
        except BaseException as error:
            blame(error, name, impl)
            raise
        wrapper.close()
        raise _misuse(name, impl, "yielded a second time")

    call.__name__ = name
    return call


def _unwind(name: str, impl: Any, wrapper: Generator[None, Any, Any], error: BaseException) -> Any:
    """Give ``wrapper`` its turn after ``error``: what it answers in its place, or the error that goes on."""
    try:
        wrapper.throw(error)
    except StopIteration as stop:
        return stop.value
    except BaseException as other:
        itself = other is error or (isinstance(error, StopIteration) and other.__cause__ is error)
        if other.__cause__ is error and not itself:
            raise
        if not itself:
            blame(other, name, impl)
            error.add_note(f"then also: {type(other).__name__}: {other} ({other.__notes__[-1]})")
    else:
        wrapper.close()
        error.add_note(f"then also: {_misuse(name, impl, 'yielded a second time')}")
    raise error


def _misuse(name: str, impl: Any, what: str) -> RuntimeError:
    return RuntimeError(f"the wrapper of {name} in plugin {impl.plugin_name!r} {what}; it must yield exactly once")


__all__ = ["OWN", "Answers", "around", "blame", "in_turn"]
