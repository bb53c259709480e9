"""Refuse hooks of live plugins that would never be called, or not as their author thinks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pluggy

from lightloop.dispatch import CLEAN_UP, OWN
from lightloop.found import PluginError
from lightloop.nearest import nearest
from lightloop.plugin import Plugin


def check_hooks(plugin: Plugin, hooks: Mapping[str, pluggy.HookCaller]) -> None:
    """Refuse what one plugin marks as a hook, or forgets to mark."""
    label = plugin.label
    for name, method in inspect.getmembers(type(plugin), inspect.isroutine):
        marked = getattr(method, "lightloop_impl", None)
        where = f"{label}: hook {name!r}"
        if marked is None:
            if name in hooks and _looks_like(method, hooks[name]):
                raise PluginError(f"{where} is not marked and would never be called: write @hookimpl above it")
            continue
        hook = marked.get("specname") or name
        if hook in hooks:
            _check_parameters(where, method, hooks[hook])
            _check_kind(where, hook, method, marked, hooks[hook])
        elif not marked["optionalhook"]:
            raise PluginError(f"{where} does not exist.{nearest(hook, hooks)}")


def check_answers(hooks: Mapping[str, pluggy.HookCaller]) -> None:
    """Refuse two plugins that answer one operation, where neither says which is asked first."""
    for name, caller in hooks.items():
        if not caller.spec or not caller.spec.opts["firstresult"]:
            continue
        answering: list[Plugin] = [i.plugin for i in caller.get_hookimpls() if not i.wrapper and i.plugin_name != OWN]  # type: ignore[misc]
        for other, one in combinations(answering, 2):
            if one.name != other.name and not _places(one, other) and not _places(other, one):
                raise PluginError(
                    f"plugins {one.name!r} and {other.name!r} both answer {name!r} and neither says which is asked "
                    "first: leave one out, or give one of them before or after the other"
                )


def _looks_like(method: Any, caller: pluggy.HookCaller) -> bool:
    """Whether a method that bears a hook's name takes a hook's arguments too."""
    names = list(inspect.signature(method).parameters)[1:]
    return bool(caller.spec and names[:1] == ["loop"] and set(names) <= set(caller.spec.argnames))


def _check_parameters(where: str, method: Any, caller: pluggy.HookCaller) -> None:
    assert caller.spec is not None
    known = caller.spec.argnames
    parameters = list(inspect.signature(method).parameters.values())
    if not parameters or parameters[0].name in known:
        raise PluginError(f"{where} must be a plain method that takes self before its arguments")
    for parameter in parameters[1:]:
        if parameter.name not in known:
            raise PluginError(f"{where} has no argument {parameter.name!r}; it has {', '.join(known) or 'none'}")
        if parameter.default is not parameter.empty:
            raise PluginError(
                f"{where} gives {parameter.name!r} a default, which would hide the real value: take it away"
            )
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise PluginError(f"{where} must take {parameter.name!r} as a plain argument, without * or /")


def _check_kind(where: str, hook: str, method: Any, marked: Mapping[str, Any], caller: pluggy.HookCaller) -> None:
    assert caller.spec is not None
    tells = inspect.signature(caller.spec.function).return_annotation in (None, "None")
    yields = inspect.isgeneratorfunction(method)
    if marked["hookwrapper"]:
        raise PluginError(f"{where} is an old-style wrapper, whose late errors hide the first: say wrapper=True")
    if marked["trylast"]:
        raise PluginError(f"{where} says trylast=True, which makes the order depend on who else does: use 'after'")
    if marked["wrapper"] and hook in CLEAN_UP:
        raise PluginError(f"{where} cannot be wrapped: there everybody has a turn, whatever others do")
    if marked["wrapper"] and hook == "setup":
        raise PluginError(f"{where} cannot be wrapped: plugins are set up one after another")
    if marked["wrapper"] and not yields:
        raise PluginError(f"{where} is a wrapper and must yield once, where the others are called")
    if inspect.iscoroutinefunction(method) or (yields and tells and not marked["wrapper"]):
        raise PluginError(f"{where} is a generator or a coroutine and would never run; a wrapper says wrapper=True")


def _places(one: Plugin, other: Plugin) -> bool:
    """Whether ``one`` says on which side of ``other`` it stands."""
    return bool(other.called() & {*one.before, *one.after})
