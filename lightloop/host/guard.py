"""Keep the failures of a plugin from ending the run, where the plugin says that they need not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Failed = Callable[[Exception], None]
"""Told of what was raised."""


def guarded(function: Callable[..., Any], failed: Failed) -> Callable[..., Any]:
    """``function``, which answers None where it fails."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            failed(error)
            return None

    return call


def guarded_wrapper(
    function: Callable[..., Generator[None, Any, Any]], failed: Failed
) -> Callable[..., Generator[None, Any, Any]]:
    """The wrapper ``function``, around which the rest goes on where it fails; the errors of the rest pass through it."""

    def surround(*arguments: Any) -> Generator[None, Any, Any]:
        wrapper = function(*arguments)
        try:
            next(wrapper)
        except StopIteration:
            failed(RuntimeError("the wrapper did not yield"))
            return (yield)
        except Exception as error:
            failed(error)
            return (yield)
        try:
            result = yield
        except BaseException as error:
            return _unwind(wrapper, error, failed)
        try:
            wrapper.send(result)
        except StopIteration as stop:
            return stop.value
        except Exception as error:
            failed(error)
            return result
        wrapper.close()
        failed(RuntimeError("the wrapper yielded a second time"))
        return result

    return surround


def _unwind(wrapper: Generator[None, Any, Any], error: BaseException, failed: Failed) -> Any:
    try:
        wrapper.throw(error)
    except StopIteration as stop:
        return stop.value
    except Exception as other:
        if other.__cause__ is error:  # it says so on purpose
            raise
        if other is not error:
            failed(other)
    else:
        wrapper.close()
        failed(RuntimeError("the wrapper yielded a second time"))
    raise error


__all__ = ["Failed", "guarded", "guarded_wrapper"]
