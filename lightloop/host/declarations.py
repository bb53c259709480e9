"""What live plugins say of one another: who replaces whom, who needs whom, and who cannot be with whom."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from lightloop.host.dispatch import OWN
from lightloop.host.found import Found, PluginError
from lightloop.host.plugin import Plugin


def unreplaced(live: Sequence[Plugin]) -> list[Plugin]:
    """Those of ``live`` that no other replaces; what a replaced one would replace stays."""
    kept: list[Plugin] = []
    undecided = list(live)
    while undecided:
        free = [one for one in undecided if not any(_replaces(other, one) for other in undecided)]
        if not free:
            names = " and ".join(repr(one.name) for one in undecided)
            raise PluginError(f"plugins {names} replace one another: leave all but one out")
        kept += free
        undecided = [one for one in undecided if one not in free and not any(_replaces(other, one) for other in free)]
    return [plugin for plugin in live if plugin in kept]


def _replaces(one: Plugin, other: Plugin) -> bool:
    return one is not other and bool(other.names() & set(one.replaces))


def check_declarations(live: Sequence[Plugin], without: Collection[str], found: Mapping[str, Found]) -> None:
    """Refuse plugins that share a key or a group, lack what they require, or cannot be together.

    Args:
        live: the plugins of a run.
        without: the names that the user leaves out, for the error.
        found: the installed plugins, for the error.
    """
    for one, other in combinations(live, 2):
        if one.key == other.key:
            raise PluginError(
                f"{one!r} and {other!r} would keep their state under one key, {one.key!r}: "
                "set the key of one, plugin.key = ..."
            )
        if one.group and one.group == other.group:
            raise PluginError(
                f"{one.name!r} and {other.name!r} are both of the group {one.group!r}, of which one can be live: leave one out"
            )
    there = {name for plugin in live for name in plugin.names()}
    for plugin in live:
        if plugin.key == OWN:
            raise PluginError(f"a plugin of {type(plugin).__module__} is called {OWN!r}, as the loop itself: rename it")
        for name in plugin.requires:
            if name not in there:
                how = _how_to_get(name, without, found)
                raise PluginError(f"plugin {plugin.name!r} requires {name!r}, which is not live: {how}")
        for other in live:
            if other is not plugin and other.names() & set(plugin.conflicts):
                raise PluginError(
                    f"plugins {plugin.name!r} and {other.name!r} cannot both be live, {plugin.name!r} says: leave one out"
                )


def _how_to_get(name: str, without: Collection[str], found: Mapping[str, Found]) -> str:
    if name in without:
        return f"take '-{name}' out of plugins"
    if name in found:
        return f"list {name!r} in plugins" if found[name].plugin else f"it {found[name].problem}"
    of_kind = [repr(each.name) for each in found.values() if each.plugin and name in each.plugin.names()]
    return f"list {' or '.join(of_kind)} in plugins" if of_kind else "nothing that is installed is called so"
