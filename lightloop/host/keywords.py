"""The options of all plugins as keywords of the Trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lightloop.host.found import Found, PluginError, hint
from lightloop.host.nearest import nearest
from lightloop.host.options import OPTION, Option, default_of, options_of
from lightloop.host.plugin import Plugin
from lightloop.host.roles import ROLES
from lightloop.warning import warn


@dataclasses.dataclass(frozen=True)
class Known:
    """An option that a keyword stands for."""

    keyword: str
    plugin: type[Plugin]
    field: dataclasses.Field[Any]
    owner: str
    """Whose it is, for people: "lightloop's clip"."""
    rivals: tuple[str, ...] = ()
    """The others that claim the keyword, so that it cannot be used."""

    @property
    def option(self) -> Option:
        """Help, flag and the rest of its declaration."""
        return self.field.metadata[OPTION]  # type: ignore[no-any-return]

    def turned_on_by(self, value: object) -> bool:
        """Whether giving ``value`` asks for the plugin."""
        return self.option.turns_on(value, default_of(self.field))


def known_options(found: Mapping[str, Found], listed: Iterable[type[Plugin]] = ()) -> dict[str, Known]:
    """Every option of the plugins that were ``found`` or are ``listed`` by the user, by keyword.

    A listed class takes the place of the installed one of the same name. Where several claim one keyword, the others are
    the ``rivals`` of the first.
    """
    listed = tuple(listed)
    replaced = {plugin.name for plugin in listed if plugin not in [each.plugin for each in found.values()]}
    owners = {
        each.plugin: f"{each.distribution}'s {name}"
        for name, each in found.items()
        if each.plugin and name not in replaced
    }
    owners |= {plugin: f"{plugin.__module__}'s {plugin.name}" for plugin in listed if plugin not in owners}
    known: dict[str, Known] = {}
    for plugin, owner in owners.items():
        for keyword, field in options_of(plugin).items():
            for name in (keyword, *field.metadata[OPTION].aliases):
                if name in known:
                    known[name] = dataclasses.replace(known[name], rivals=(*known[name].rivals, owner))
                    continue
                known[name] = Known(keyword, plugin, field, owner)
    return known


def resolve(options: Mapping[str, Any], known: Mapping[str, Known], found: Collection[Found] = ()) -> dict[str, Any]:
    """Bring ``options`` to today's keywords; those of plugins that were ``found`` and are not there are unknown.

    Raises:
        TypeError: if a keyword is unknown (the message has the nearest ones), or given under two names.
        PluginError: if two plugins claim one of the keywords.
    """
    resolved: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in options.items():
        if name not in known:
            raise _unknown(name, known, found)
        if known[name].rivals:
            raise PluginError(claimed_twice(name, known[name]))
        keyword = known[name].keyword
        if keyword in said:
            raise TypeError(f"{said[keyword]!r} and {name!r} are one option; give {keyword!r} alone")
        said[keyword] = name
        if name != keyword:
            warn(f"{name!r} is now called {keyword!r}", DeprecationWarning)
            value = known[name].option.aliases[name](value)
        resolved[keyword] = value
    return resolved


def claimed_twice(name: str, known: Known) -> str:
    """What is said of a keyword that several plugins claim."""
    rival = known.rivals[-1]
    return (
        f"two plugins claim the keyword {name!r}: {' and '.join((known.owner, *known.rivals))}. "
        f"Leave one out with LIGHTLOOP_WITHOUT={rival.rpartition(' ')[2]}, or uninstall it"
    )


def kinds(found: Iterable[Found]) -> set[str]:
    """The groups and tags by which users choose among the plugins that were ``found``, such as "logger"."""
    return {kind for each in found if each.plugin for kind in each.plugin.names() - {each.name, *ROLES}}


def _unknown(name: str, known: Mapping[str, Known], found: Collection[Found]) -> TypeError:
    today = {option.keyword for option in known.values()}
    absent = [f" Plugin {each.name!r}, which might have it, {each.problem}." for each in found if each.problem]
    meant = hint(f"Trainer.{name}", found) or nearest(name, today | kinds(found))
    return TypeError(f"Trainer has no option {name!r}.{meant}{''.join(absent)}")
