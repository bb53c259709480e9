"""Choose the live plugins, from what is installed, what the user lists, and the options that are given."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightloop.declarations import check_declarations, undisplaced
from lightloop.found import Found, PluginError, unsuited
from lightloop.options import known_options, nearest, resolve
from lightloop.order import in_order
from lightloop.plugin import Plugin, options_of

Entry = str | type[Plugin] | Plugin
"""What a list of plugins holds."""


class Selection:
    """Which plugins are live, from what is installed, what the user lists, and the options that are given."""

    def __init__(
        self, found: Mapping[str, Found], listed: Iterable[Entry], options: Mapping[str, Any], also: Iterable[str] = ()
    ) -> None:
        self.found = found
        self.without: set[str] = set()
        self.defaults = True
        self.entries: list[type[Plugin] | Plugin] = []
        for entry in listed:
            self._read(entry)
        own = {entry.name for entry in self.entries}
        for entry in also:  # what the program lists itself, it has set up as it wants
            if entry not in own:
                self._read(entry)
        self.settled: set[str] = set()
        self.known = known_options(found, self._listed_classes())
        rest = {name: value for name, value in options.items() if not self._settle(name, value)}
        self.known = known_options(found, self._listed_classes())
        if twice := [name for name in rest if name in self.known and self.known[name].keyword in self.settled]:
            keyword = self.known[twice[0]].keyword
            raise TypeError(f"{keyword!r} and {twice[0]!r} are one option; give {keyword!r} alone")
        resolved = resolve(rest, self.known, found.values())
        # An old name may have become that of a kind.
        self.options = {name: value for name, value in resolved.items() if not self._settle(name, value)}
        self.live = in_order(self._choose())
        check_declarations(self.live, self.without, found)

    def _read(self, entry: Entry) -> None:
        if entry == "-*":
            self.defaults = False
            return
        if isinstance(entry, str) and entry.startswith("-"):
            if entry[1:] not in self.found:
                raise PluginError(f"there is no plugin {entry[1:]!r} to leave out.{nearest(entry[1:], self.found)}")
            self.without.add(entry[1:])
            return
        chosen = self._named(entry) if isinstance(entry, str) else entry
        if not isinstance(chosen, Plugin) and not (isinstance(chosen, type) and issubclass(chosen, Plugin)):
            raise TypeError(
                f"plugins takes names, '-name', '-*', 'module:Class', Plugin classes and instances; found {chosen!r}"
            )
        kind = chosen if isinstance(chosen, type) else type(chosen)
        if not hasattr(chosen, "name"):
            raise TypeError(f'plugin class {kind.__name__} has no name: give it one, name = "..."')
        if (reason := unsuited(kind)) is not None:
            raise PluginError(f"plugin {kind.name!r} ({kind.origin()}) {reason}")
        if not any(chosen is other for other in self.entries):
            self.entries.append(chosen)

    def _listed_classes(self) -> list[type[Plugin]]:
        return [entry if isinstance(entry, type) else type(entry) for entry in self.entries]

    def _settle(self, kind: str, value: Any) -> bool:
        """Choose among the plugins of one kind, a group or a tag: ``logger="tensorboard"``, ``logger=False``.

        True, None and "auto" leave it to the defaults. Where an option has the keyword too, it has what is no plugin's
        name. Returns whether ``value`` is settled by this.
        """
        classes = [*(found.plugin for found in self.found.values() if found.plugin), *self._listed_classes()]
        names = {plugin.name for plugin in classes if kind in plugin.called() and kind != plugin.name}
        if value == "auto" and (
            here := [plugin.name for plugin in classes if plugin.name in names and _fits_here(plugin)]
        ):
            value = here[0]
        chosen = isinstance(value, (type, Plugin)) or (isinstance(value, str) and value in names)
        if not names or (kind in self.known and not chosen):
            return False
        if value is None or value is True or value == "auto":
            return True
        self.settled.add(kind)
        for entry in value if isinstance(value, (list, tuple)) else [value] if value is not False else []:
            if isinstance(entry, str) and ":" not in entry and entry not in names:
                raise PluginError(
                    f"there is no {kind} {entry!r}.{nearest(entry, names)} There are {', '.join(sorted(names))}"
                )
            self._read(entry)
        return True

    def _named(self, name: str) -> type[Plugin]:
        if ":" in name:
            module, _, attribute = name.partition(":")
            try:
                return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
            except (ImportError, AttributeError) as error:
                raise PluginError(f"plugin {name!r} cannot be imported: {error}") from error
        found = self.found.get(name)
        if found is None:
            raise PluginError(f"there is no plugin {name!r}.{nearest(name, self.found)}")
        if found.plugin is None:
            raise PluginError(f"plugin {found} was asked for; it {found.problem}") from found.error
        return found.plugin

    def _choose(self) -> list[Plugin]:
        given: dict[type[Plugin], dict[str, Any]] = {}
        for keyword, value in self.options.items():
            given.setdefault(self.known[keyword].plugin, {})[keyword] = value
        live: list[Plugin] = []
        for entry in self.entries:
            kind = entry if isinstance(entry, type) else type(entry)
            if kind.name in self.without:
                raise PluginError(f"plugin {kind.name!r} is both listed and left out by '-{kind.name}'")
            if isinstance(entry, type):
                live.append(_build(entry, given.get(entry, {})))
            elif kind in given:
                raise TypeError(
                    f"{next(iter(given[kind]))!r} is an option of {kind.name!r}, which is listed as an instance: set it there"
                )
            else:
                live.append(entry)
        listed = {plugin.name for plugin in live}
        wanted = [found.plugin for found in self.found.values() if found.plugin and found.name not in listed]
        asked = [plugin for plugin in wanted if self._asked(plugin, given.get(plugin, {}))]
        live += [_build(plugin, given.get(plugin, {})) for plugin in asked]
        return undisplaced(_with_defaults(live, self._defaults(wanted, asked, live, given)))

    def _defaults(
        self,
        wanted: Sequence[type[Plugin]],
        asked: Sequence[type[Plugin]],
        live: Sequence[Plugin],
        given: Mapping[type[Plugin], Mapping[str, Any]],
    ) -> dict[Plugin, bool]:
        """The default plugins that nothing keeps out, and whether options of theirs were given."""
        groups = {plugin.group for plugin in live if plugin.group}
        defaults = {}
        for plugin in sorted(wanted, key=_fits_here, reverse=True) if self.defaults else ():
            off = any(self.known[k].option.switch and not v for k, v in given.get(plugin, {}).items())
            if (
                plugin.is_default()
                and plugin not in asked
                and not off
                and plugin.name not in self.without
                and plugin.group not in groups
                and not plugin.called() & self.settled
                and not (_fits_here(plugin) and self.options.get(plugin.group or "") is False)
            ):
                defaults[_build(plugin, given.get(plugin, {}))] = plugin in given
                groups |= {plugin.group} if _fits_here(plugin) and plugin.group else set()
        return defaults

    def _asked(self, plugin: type[Plugin], given: Mapping[str, Any]) -> bool:
        on = [keyword for keyword, value in given.items() if self.known[keyword].turned_on_by(value)]
        if on and plugin.name in self.without:
            raise PluginError(f"{on[0]!r} asks for plugin {plugin.name!r}, which is left out by '-{plugin.name}'")
        if on:
            return True
        idle = [k for k, v in given.items() if not self.known[k].option.enables and v != self.known[k].field.default]
        if idle and not plugin.is_default():
            switches = [keyword for keyword, field in options_of(plugin).items() if self.known[keyword].option.enables]
            ask = f"give {' or '.join(switches)}" if switches else f"list {plugin.name!r} in plugins"
            raise TypeError(f"{idle[0]!r} tunes plugin {plugin.name!r}, and nothing turns that on: {ask}")
        return False


def _fits_here(plugin: type[Plugin]) -> bool:
    """Whether it is a default only because of where this process is."""
    return plugin.is_default() and not plugin.default


def _with_defaults(live: Sequence[Plugin], defaults: Mapping[Plugin, bool]) -> list[Plugin]:
    """``live`` and the ``defaults``, but for those that lack what they require and whose options nobody gave."""
    kept = dict(defaults)
    while True:
        there = {name for plugin in (*live, *kept) for name in plugin.called()}
        lacking = [plugin for plugin, tuned in kept.items() if not tuned and not there.issuperset(plugin.requires)]
        if not lacking:
            return [*live, *kept]
        for plugin in lacking:
            del kept[plugin]


def from_environment(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What ``LIGHTLOOP_PLUGINS`` lists: the entries of ``plugins`` that are strings, with commas between them."""
    return [entry.strip() for entry in environ.get("LIGHTLOOP_PLUGINS", "").split(",") if entry.strip()]


def _build(plugin: type[Plugin], given: Mapping[str, Any]) -> Plugin:
    ready = next((value for value in given.values() if isinstance(value, plugin)), None)
    if ready is not None:  # an option may be given the plugin itself
        if len(given) > 1:
            raise TypeError(f"{', '.join(given)}: {ready!r} has its options already; set them there")
        return ready
    fields = options_of(plugin)
    return plugin(**{fields[keyword].name: value for keyword, value in given.items()})


__all__ = ["Entry", "Selection", "from_environment"]
