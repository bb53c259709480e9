"""What live plugins are held to before a run: their hooks, and what they say of one another."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pluggy

from lightloop.dispatch import CLEAN_UP, OWN, Relay
from lightloop.found import Found, PluginError
from lightloop.options import nearest
from lightloop.plugin import Plugin


def check_hooks(plugin: Plugin, hooks: Mapping[str, pluggy.HookCaller]) -> None:
    """Refuse hooks that would never be called, or not as their author thinks."""
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
        for index, one in enumerate(answering):
            for other in answering[:index]:
                if one.name != other.name and not _places(one, other) and not _places(other, one):
                    raise PluginError(
                        f"plugins {one.name!r} and {other.name!r} both answer {name!r} and neither says which is asked "
                        "first: leave one out, or give one of them before or after the other"
                    )


def undisplaced(live: Sequence[Plugin]) -> list[Plugin]:
    """Those of ``live`` that no other displaces; what a displaced one would displace stays."""
    kept: list[Plugin] = []
    undecided = list(live)
    while undecided:
        free = [one for one in undecided if not any(_displaces(other, one) for other in undecided)]
        if not free:
            names = " and ".join(repr(one.name) for one in undecided)
            raise PluginError(f"plugins {names} displace one another: leave all but one out")
        kept += free
        undecided = [one for one in undecided if one not in free and not any(_displaces(other, one) for other in free)]
    return [plugin for plugin in live if plugin in kept]


def check_needs(live: Sequence[Plugin], without: Collection[str], found: Mapping[str, Found]) -> None:
    """Refuse plugins that share a key or a group, lack what they require, or cannot be together."""
    keys: dict[str, Plugin] = {}
    groups: dict[str, Plugin] = {}
    there = {name for plugin in live for name in plugin.called()}
    for plugin in live:
        if plugin.key == OWN:
            raise PluginError(f"a plugin of {type(plugin).__module__} is called {OWN!r}, as the loop itself: rename it")
        if (twin := keys.setdefault(plugin.key, plugin)) is not plugin:
            raise PluginError(
                f"{twin!r} and {plugin!r} would keep their state under one key, {plugin.key!r}: "
                "set the key of one, plugin.key = ..."
            )
        if plugin.group and (rival := groups.setdefault(plugin.group, plugin)) is not plugin:
            raise PluginError(
                f"{rival.name!r} and {plugin.name!r} are both of the group {plugin.group!r}, of which one can be live: "
                f"leave one out"
            )
        for name in plugin.requires:
            if name not in there:
                raise PluginError(
                    f"plugin {plugin.name!r} requires {name!r}, which is not live: {_how_to_get(name, without, found)}"
                )
        for other in live:
            if other is not plugin and other.called() & set(plugin.conflicts):
                raise PluginError(
                    f"plugins {plugin.name!r} and {other.name!r} cannot both be live, {plugin.name!r} says: leave one out"
                )


def _how_to_get(name: str, without: Collection[str], found: Mapping[str, Found]) -> str:
    if name in without:
        return f"take '-{name}' out of plugins"
    if name in found:
        return f"list {name!r} in plugins" if found[name].plugin else f"it {found[name].problem}"
    of_kind = [repr(each.name) for each in found.values() if each.plugin and name in each.plugin.called()]
    return f"list {' or '.join(of_kind)} in plugins" if of_kind else "nothing that is installed is called so"


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
    return bool(other.called() & {*one.before, *one.after})


def _displaces(one: Plugin, other: Plugin) -> bool:
    return one is not other and bool(other.called() & set(one.displaces))


def hooks_of(manager: pluggy.PluginManager, first: Iterable[str]) -> dict[str, pluggy.HookCaller]:
    """Every hook that is specified: those named ``first`` in that order, then the others by name."""
    specified = {n: c for n, c in vars(manager.hook).items() if isinstance(c, pluggy.HookCaller) and c.has_spec()}
    names = [name for name in first if name in specified]
    for name in set(specified) - set(names):
        if hasattr(Relay, name):
            raise PluginError(f"a plugin brings a hook {name!r}, which the relay of hooks has for itself: rename it")
    return {name: specified[name] for name in [*names, *sorted(set(specified) - set(names))]}
