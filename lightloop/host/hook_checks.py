"""Refuse hooks of live plugins that would never be called, or not as their author thinks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any
from weakref import WeakKeyDictionary

import pluggy

from lightloop.host.bytecode import returns_nothing, works_after_yield, works_before_yield, yields_nothing
from lightloop.host.dispatch import CLEAN_UP, OWN
from lightloop.host.found import PluginError
from lightloop.host.nearest import differ_by_a_letter, nearest
from lightloop.host.plugin import Plugin
from lightloop.host.roles import ROLES

_CHECKED: WeakKeyDictionary[type[Plugin], dict[object, list[str]]] = WeakKeyDictionary()
"""What came out for a class, by its name and the hooks that there were: a process that trains often looks once."""


def check_hooks(plugin: Plugin, hooks: Mapping[str, pluggy.HookCaller]) -> list[str]:
    """Refuse what one plugin marks as a hook, or forgets to mark; the doubts that it leaves are returned as warnings."""
    known = _CHECKED.setdefault(type(plugin), {})
    among = plugin.label, frozenset((name, hook.spec and hook.spec.function) for name, hook in hooks.items())
    if among not in known:
        known[among] = _checked(plugin, hooks)
    return known[among]


def _checked(plugin: Plugin, hooks: Mapping[str, pluggy.HookCaller]) -> list[str]:
    doubts = [
        f"{plugin.label}: the tag {tag!r} is nearly {role!r}, which is the role of what {ROLES[role]}: write {role!r}, or call "
        "the tag something else"
        for tag in plugin.tags
        if tag not in ROLES
        for role in ROLES
        if differ_by_a_letter(tag, role)
    ]
    for name in dir(type(plugin)):
        method = inspect.getattr_static(type(plugin), name)
        marked, where = _mark(method), f"{plugin.label}: hook {name!r}"
        if marked is None:
            doubts += _unmarked(plugin, name, method, hooks)
            continue
        if not inspect.isfunction(method):
            raise PluginError(
                f"{where} is a {type(method).__name__} and would never be called: make it a plain method, "
                f"'@hookimpl' above 'def {name}(self, loop)'"
            )
        hook = marked.get("specname") or name
        if hook in hooks:
            _check_parameters(where, method, hooks[hook])
            _check_kind(where, hook, method, marked, hooks[hook])
        elif not marked["optionalhook"]:
            raise PluginError(f"{where} does not exist.{nearest(hook, hooks)}")
    return doubts


def _mark(method: object) -> Mapping[str, Any] | None:
    """What ``hookimpl`` has written on a method, also beneath ``classmethod``, ``property`` and the like."""
    for inner in (method, *(getattr(method, name, None) for name in ("__func__", "fget", "func"))):
        if (mark := getattr(inner, "lightloop_impl", None)) is not None:
            return mark  # type: ignore[no-any-return]
    return None


def _unmarked(plugin: Plugin, name: str, method: object, hooks: Mapping[str, pluggy.HookCaller]) -> list[str]:
    """Refuse a method that looks like a hook and is not marked, and doubt one that has, or nearly has, a hook's name."""
    of_hook = name in hooks and not name.startswith("_")
    if of_hook and inspect.isfunction(method) and _looks_like(method, hooks[name]):
        raise PluginError(
            f"{plugin.label}: hook {name!r} is not marked and would never be called: write @hookimpl above it"
        )
    if of_hook and (callable(method) or isinstance(method, (classmethod, staticmethod, property))):
        spec = hooks[name].spec
        arguments = ", ".join(("self", *(spec.argnames if spec else ())))
        return [
            f"{plugin.label}: {name!r} has the name of a hook, is not marked as one and is never called: write "
            f"'@hookimpl' above 'def {name}({arguments})', or rename it, such as to {f'_{name}'!r}"
        ]
    if name.startswith("_") or hasattr(Plugin, name) or not inspect.isfunction(method):
        return []
    meant = [hook for hook in hooks if differ_by_a_letter(name, hook) and _looks_like(method, hooks[hook])]
    return [
        f"{plugin.label}: {name!r} differs by a letter from the hook {hook!r}, is not marked and is never called as one: "
        f"write '@hookimpl' above 'def {hook}', or rename it"
        for hook in meant
    ]


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


def check_places(plugins: Sequence[Plugin], hooks: Mapping[str, pluggy.HookCaller]) -> None:
    """Refuse a place that a plugin declares beside another and that none of the hooks which both have can keep.

    Plugins are set up in order. In any other hook, wrappers begin before, and end after, all that is no wrapper; what says
    ``tryfirst`` is called before its like.
    """
    impls: dict[str, dict[str, list[pluggy.HookImpl]]] = {}
    for name, caller in hooks.items():
        for impl in caller.get_hookimpls() if name not in CLEAN_UP else ():
            impls.setdefault(impl.plugin_name, {}).setdefault(name, []).append(impl)
    called = {plugin.key: plugin.names() for plugin in plugins}
    for one, other in permutations([plugin for plugin in plugins if plugin.key in impls], 2):
        if called[other.key].isdisjoint(one.before) and called[one.key].isdisjoint(other.after):
            continue
        shared = impls[one.key].keys() & impls[other.key].keys()
        if not shared or "setup" in shared:
            continue
        kept = (_keeps(a, b) for hook in shared for a in impls[one.key][hook] for b in impls[other.key][hook])
        if not any(kept):
            hook = min(shared)
            raise PluginError(_unkept(one, other, hook, impls[one.key][hook][0], impls[other.key][hook][0]))


def _keeps(first: pluggy.HookImpl, second: pluggy.HookImpl) -> bool:
    """Whether anything of ``second`` comes after something of ``first``, which is declared to be before it."""
    if first.wrapper == second.wrapper:
        return first.tryfirst or not second.tryfirst
    return works_after_yield(second.function) if second.wrapper else works_before_yield(first.function)


def _unkept(one: Plugin, other: Plugin, hook: str, first: pluggy.HookImpl, second: pluggy.HookImpl) -> str:
    """What is said where ``one``, whose ``hook`` is ``first``, is declared to be before ``other`` and cannot be."""
    says = f"{one.label} is declared to come before {other.label}, and that holds in no hook: "
    if first.wrapper == second.wrapper:
        return f"{says}{hook!r} of {other.name!r} says tryfirst=True. Take it away, or the 'before' or 'after'"
    if second.wrapper:
        return (
            f"{says}{hook!r} of {other.name!r} is a wrapper, which begins before whatever is none, and does nothing after its "
            f"yield. Make {hook!r} of {one.name!r} a wrapper too, or take the 'before' or 'after' away"
        )
    return (
        f"{says}{hook!r} of {one.name!r} is a wrapper, which ends after whatever is none, and does nothing before its yield. "
        f"Do there what {other.name!r} has to come after, or take the 'before' or 'after' away"
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
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise PluginError(f"{where} is a coroutine and would never run: write 'def' in place of 'async def'")
    if yields and not marked["wrapper"] and (tells or not _may_yield(hook, method, caller)):
        raise PluginError(
            f"{where} is a generator and would never run: a wrapper says '@hookimpl(wrapper=True)', and what is no wrapper "
            "returns in place of yielding"
        )
    if marked["wrapper"] and not tells and returns_nothing(method):
        raise PluginError(
            f"{where} is a wrapper that returns nothing, so that the answer is lost: end it with 'return (yield)', or with "
            "'answer = yield' and 'return answer'"
        )


def _may_yield(hook: str, method: Any, caller: pluggy.HookCaller) -> bool:
    """Whether a generator is an answer; a loader is read anew in each epoch, which a generator cannot be."""
    assert caller.spec is not None
    annotation = str(caller.spec.function.__annotations__.get("return", ""))
    return "Iterable" in annotation and hook != "prepare_loader" and not yields_nothing(method)


def _places(one: Plugin, other: Plugin) -> bool:
    """Whether ``one`` says on which side of ``other`` it stands."""
    return bool(other.names() & {*one.before, *one.after})
