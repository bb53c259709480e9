"""Functions that call the implementations of one hook, and note on an exception whose it is."""

from __future__ import annotations

import linecache
import re
import types
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from itertools import chain, count
from typing import Any, Literal, NamedTuple

from lightloop.exceptions import add_note, notes_of

OWN = "loop"
"""The name under which the loop's own answers are registered."""
Answers = Literal["first", "all", "none"]
"""What is wanted of the answers to a hook."""
ANSWERED = "(answer := {call}) is not None"
CHECKED = ANSWERED + " and (type(answer) in {known}{meant} or (answer := {check}(answer)) is not None)"
THEN: dict[Answers, str] = {"first": "said.impl = {impl}; return answer", "all": "answers.append(answer)"}


EVERY: frozenset[type] = frozenset()
"""Stands for the types of all answers, where none is checked."""


class Check(NamedTuple):
    """How the answers of one implementation are checked; of a type that was seen before, that takes no call."""

    known: set[type] | frozenset[type]
    """The types of the answers that were right."""
    check: Callable[[Any], Any]
    """Gives back an answer that is right, raises what is to be said of a wrong one, or gives None to ignore it."""
    meant: str = ""
    """A condition on ``answer`` that one of a known type has to meet too."""


class Said:
    """Who gave the last answer to a hook."""

    impl: Any = None


def blame(error: BaseException, hook: str, impl: Any) -> None:
    """Note on ``error`` in which plugin and hook it was raised."""
    if impl.plugin_name != OWN:
        add_note(error, f"in {hook} of {impl.plugin.label}")


def in_turn(
    name: str,
    arguments: Sequence[str],
    impls: Sequence[Any],
    functions: Sequence[Callable[..., Any]],
    answers: Answers,
    checks: Sequence[Check | None] = (),
    said: Said | None = None,
) -> Callable[..., Any]:
    """A function that calls ``functions``, those of ``impls``, one after another and gives what is wanted of their answers.

    Each call has a line of its own, by which the plugin is found that an exception comes from. Who gave the first answer is
    then in ``said``.
    """
    names = [re.sub(r"\W", "_", f"p{index}_{impl.plugin_name}") for index, impl in enumerate(impls)]
    checked = [*checks, *[None] * (len(impls) - len(checks))]
    lines = [_line(each, impl, answers, check) for each, impl, check in zip(names, impls, checked, strict=True)]
    head = [f"def {name}({', '.join(arguments)}):", *([" answers = []"] if answers == "all" else []), " try:"]
    foot = [" except BaseException as error:", "  fault(error)", "  raise"]
    end = [" return answers"] if answers == "all" else []

    def fault(error: BaseException) -> None:
        assert error.__traceback__ is not None
        blame(error, name, impls[error.__traceback__.tb_lineno - len(head) - 1])

    space: dict[str, Any] = dict(zip(names, functions, strict=True)) | {"fault": fault, "said": said or Said()}
    for each, impl, check in zip(names, impls, checked, strict=True):
        space[f"impl_{each}"] = impl
        if check is not None:
            space |= {f"known_{each}": check.known, f"check_{each}": check.check}
    exec(_code("\n".join([*head, *(lines or ["  pass"]), *foot, *end]), name), space)
    return space[name]  # type: ignore[no-any-return]


def _line(name: str, impl: Any, answers: Answers, check: Check | None) -> str:
    call = f"{name}({', '.join(impl.argnames)})"
    if answers == "none":
        return f"  {call}"
    meant = f" and {check.meant}" if check is not None and check.meant else ""
    answered = ANSWERED if check is None else CHECKED
    condition = answered.format(call=call, known=f"known_{name}", check=f"check_{name}", meant=meant)
    return f"  if {condition}: {THEN[answers].format(impl=f'impl_{name}')}"


@lru_cache(4096)
def _code(source: str, name: str) -> types.CodeType:
    """``source``, compiled; tracebacks and debuggers show its lines."""
    entry = len(source), None, source.splitlines(keepends=True)
    files = chain([f"<hook {name}>"], (f"<hook {name} {number}>" for number in count(2)))
    file = next(file for file in files if linecache.cache.setdefault(file, (*entry, file))[:3] == entry)
    return compile(source, file, "exec")


def around(
    name: str,
    impl: Any,
    function: Callable[..., Any],
    inner: Callable[..., Any],
    check: Check | None = None,
    said: Said | None = None,
) -> Callable[..., Any]:
    """``inner`` surrounded by the wrapper ``impl``, whose generator ``function`` yields once.

    What it answers in place of ``inner``'s answer is checked, and is then what it has ``said``.

    An error that a wrapper raises by accident while another is on its way is noted on that one; it takes its place only
    if the wrapper says ``raise ... from``. A wrapper may catch an error and answer in its place, but not what ends the
    process, such as KeyboardInterrupt.
    """
    known, checked, meant = check or (EVERY, _same, "")
    if meant:  # of a known type, it may still be wrong
        known = set()
    said = said or Said()

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
            answer, said.impl = _unwind(name, impl, wrapper, error), impl
            return answer if known is EVERY or type(answer) in known else checked(answer)
        try:
            wrapper.send(result)
        except StopIteration as stop:
            if (answer := stop.value) is result:
                return answer
            said.impl = impl
            return answer if known is EVERY or type(answer) in known else checked(answer)
        except BaseException as error:
            blame(error, name, impl)
            raise
        wrapper.close()
        raise _misuse(name, impl, "yielded a second time")

    call.__name__ = name
    return call


def _same(answer: Any) -> Any:
    return answer


def _unwind(name: str, impl: Any, wrapper: Generator[None, Any, Any], error: BaseException) -> Any:
    """Give ``wrapper`` its turn after ``error``: what it answers in its place, or the error that goes on."""
    try:
        wrapper.throw(error)
    except StopIteration as stop:
        if isinstance(error, Exception):
            return stop.value
        add_note(
            error, f"the wrapper of {name} in {impl.plugin.label} caught it; what ends the process goes on all the same"
        )
    except BaseException as other:
        itself = other is error or (isinstance(error, StopIteration) and other.__cause__ is error)
        if other.__cause__ is error and not itself:
            raise
        if not itself:
            blame(other, name, impl)
            add_note(error, f"then also: {type(other).__name__}: {other} ({notes_of(other)[-1]})")
    else:
        wrapper.close()
        add_note(error, f"then also: {_misuse(name, impl, 'yielded a second time')}")
    raise error


def _misuse(name: str, impl: Any, what: str) -> RuntimeError:
    return RuntimeError(f"the wrapper of {name} in plugin {impl.plugin_name!r} {what}; it must yield exactly once")


__all__ = ["OWN", "Answers", "Check", "Said", "around", "blame", "in_turn"]
