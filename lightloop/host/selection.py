"""Choose the live plugins, from what is installed, what the user lists, and the options that are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightloop.exceptions import add_note
from lightloop.host.declarations import check_declarations, unreplaced
from lightloop.host.found import OWN_DISTRIBUTION, Found, PluginError
from lightloop.host.keywords import known_options, resolve
from lightloop.host.listing import Entry, Listing, is_default_here
from lightloop.host.options import default_of, options_of
from lightloop.host.order import in_order
from lightloop.host.plugin import Plugin


class Selection:
    """The plugins of a run, in ``live``: the listed ones, those that an option turns on, and the default ones.

    Args:
        found: the installed plugins.
        listed: the plugins that the user lists.
        options: the options that are given, by keyword.
        also: plugins that are listed elsewhere, and left to the user where he lists them himself.
    """

    def __init__(
        self, found: Mapping[str, Found], listed: Iterable[Entry], options: Mapping[str, Any], also: Iterable[str] = ()
    ) -> None:
        self._found = found
        self._listing = Listing(found, listed, also)
        self._options = self._resolved(options)
        self._given: dict[type[Plugin], dict[str, Any]] = {}
        for keyword, value in self._options.items():
            self._given.setdefault(self._known[keyword].plugin, {})[keyword] = value
        chosen = unreplaced(self._chosen())
        self.absent = absent(chosen, found, self._listing.classes)
        """The plugins that are not live, and have a say in the order all the same."""
        self.live = in_order(chosen, self.absent)
        check_declarations(self.live, self._listing.without, found)

    def _resolved(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """``options`` by today's keywords, without those that choose among the plugins of a kind."""
        known, choose = known_options(self._found, self._listing.classes), self._listing.choose
        rest = {name: value for name, value in options.items() if not choose(name, value, name in known)}
        self._known = known = known_options(self._found, self._listing.classes)  # with those of what was chosen
        if twice := [name for name in rest if name in known and known[name].keyword in self._listing.chosen]:
            keyword = known[twice[0]].keyword
            raise TypeError(f"{keyword!r} and {twice[0]!r} are one option; give {keyword!r} alone")
        resolved = resolve(rest, known, self._found.values())
        # An old name may have become that of a kind.
        return {name: value for name, value in resolved.items() if not choose(name, value, name in known)}

    def _chosen(self) -> list[Plugin]:
        live = [self._listed(plugin) for plugin in self._listing.plugins]
        names = {plugin.name for plugin in live}
        others = [found.plugin for found in self._found.values() if found.plugin and found.name not in names]
        asked = [plugin for plugin in others if self._is_asked_for(plugin)]
        live += [self._built(plugin) for plugin in asked]
        if not self._listing.has_defaults:
            return live
        defaults = self._defaults([plugin for plugin in others if plugin not in asked and plugin.is_default()], live)
        return [*live, *self._supported(defaults, live)]

    def _listed(self, entry: type[Plugin] | Plugin) -> Plugin:
        if entry.name in self._listing.without:
            raise PluginError(f"plugin {entry.name!r} is both listed and left out by '-{entry.name}'")
        if isinstance(entry, type):
            return self._built(entry)
        if given := self._given.get(type(entry)):
            raise TypeError(
                f"{next(iter(given))!r} is an option of {entry.name!r}, which is listed as an instance: set it there"
            )
        return entry

    def _is_asked_for(self, plugin: type[Plugin]) -> bool:
        """Whether one of its options turns it on."""
        given = self._given.get(plugin, {})
        on = [keyword for keyword, value in given.items() if self._known[keyword].turned_on_by(value)]
        if on and plugin.name in self._listing.without:
            raise PluginError(f"{on[0]!r} asks for plugin {plugin.name!r}, which is left out by '-{plugin.name}'")
        if on:
            return True
        idle = [
            k for k, v in given.items() if not self._known[k].option.enables and v != default_of(self._known[k].field)
        ]
        if idle and not plugin.is_default():
            switches = [keyword for keyword in options_of(plugin) if self._known[keyword].option.enables]
            ask = f"give {' or '.join(switches)}" if switches else f"list {plugin.name!r} in plugins"
            raise TypeError(f"{idle[0]!r} tunes plugin {plugin.name!r}, and nothing turns that on: {ask}")
        return False

    def _defaults(self, candidates: Iterable[type[Plugin]], live: Iterable[Plugin]) -> list[Plugin]:
        """Those of the default plugins that nothing keeps out."""
        groups = {plugin.group for plugin in live if plugin.group}
        defaults = []
        for plugin in sorted(candidates, key=is_default_here, reverse=True):
            if not self._is_kept_out(plugin, groups):
                defaults.append(self._built(plugin))
                groups |= {plugin.group} if is_default_here(plugin) and plugin.group else set()
        return defaults

    def _is_kept_out(self, plugin: type[Plugin], groups: set[str]) -> bool:
        """Whether its name, its kind, one of its ``groups`` that is live, or an option that is a switch keeps it out."""
        given = self._given.get(plugin, {})
        return (
            plugin.name in self._listing.without
            or plugin.group in groups
            or bool(plugin.names() & self._listing.chosen)
            or any(self._known[keyword].option.switch and not value for keyword, value in given.items())
            or (is_default_here(plugin) and self._options.get(plugin.group or "") is False)
        )

    def _supported(self, defaults: Sequence[Plugin], live: Sequence[Plugin]) -> list[Plugin]:
        """``defaults`` without those that lack what they require, save where an option of theirs was given."""
        kept = list(defaults)
        while True:
            there = {name for plugin in (*live, *kept) for name in plugin.names()}
            lacking = [each for each in kept if type(each) not in self._given and not there.issuperset(each.requires)]
            if not lacking:
                return kept
            kept = [each for each in kept if each not in lacking]

    def _built(self, plugin: type[Plugin]) -> Plugin:
        given = self._given.get(plugin, {})
        ready = next((value for value in given.values() if isinstance(value, plugin)), None)
        if ready is not None:  # an option may be given the plugin itself
            if len(given) > 1:
                raise TypeError(f"{', '.join(given)}: {ready!r} has its options already; set them there")
            return ready
        fields = options_of(plugin)
        try:
            return plugin(**{fields[keyword].name: value for keyword, value in given.items()})
        except Exception as error:
            if plugin.name not in str(error):
                add_note(error, f"in making plugin {plugin.name!r} ({plugin.origin()})")
            raise


def absent(live: Iterable[Plugin], found: Mapping[str, Found], listed: Iterable[type[Plugin]]) -> list[type[Plugin]]:
    """The plugins that are installed or listed and are not live: Lightloop's own first, then those of others."""
    there = {plugin.name for plugin in live}
    installed = sorted(found.values(), key=lambda each: (each.distribution != OWN_DISTRIBUTION, each.name))
    known = {each.name: each.plugin for each in installed if each.plugin} | {plugin.name: plugin for plugin in listed}
    return [plugin for name, plugin in known.items() if name not in there]
