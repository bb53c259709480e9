"""Read what the user lists: plugins to have, plugins to leave out, and which one of a kind."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from lightloop.host.found import Found, PluginError, unsuited
from lightloop.host.nearest import nearest
from lightloop.host.plugin import Plugin
from lightloop.host.roles import ROLES

Entry = str | type[Plugin] | Plugin
"""What a list of plugins holds."""


class Listing:
    """What is listed, as classes and instances."""

    def __init__(self, found: Mapping[str, Found], listed: Iterable[Entry], also: Iterable[str] = ()) -> None:
        self.found = found
        self.plugins: list[type[Plugin] | Plugin] = []
        self.without: set[str] = set()
        """The names that are left out."""
        self.has_defaults = True
        """Whether default plugins are wanted."""
        self.chosen: set[str] = set()
        """The kinds, groups and tags, whose plugins were chosen here, so that no default one of them is wanted."""
        for entry in listed:
            self.add(entry)
        own = {plugin.name for plugin in self.plugins}
        for entry in also:  # what the program lists itself, it has set up as it wants
            if entry in own:
                continue
            try:
                self.add(entry)
            except (PluginError, TypeError) as error:
                raise type(error)(f"{error} (LIGHTLOOP_PLUGINS lists {entry!r})") from error

    @property
    def classes(self) -> list[type[Plugin]]:
        """The classes of what is listed."""
        return [class_of(plugin) for plugin in self.plugins]

    def add(self, entry: Entry) -> None:
        """Take in one entry of the list.

        Raises:
            TypeError, PluginError: if it is no plugin, or one that is missing, broken or for another Lightloop.
        """
        if entry == "-*":
            self.has_defaults = False
            return
        if isinstance(entry, str) and entry.startswith("-"):
            if entry[1:] not in self.found:
                raise PluginError(f"there is no plugin {entry[1:]!r} to leave out.{nearest(entry[1:], self.found)}")
            self.without.add(entry[1:])
            return
        plugin = self._named(entry) if isinstance(entry, str) else entry
        if not isinstance(plugin, Plugin) and not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
            raise TypeError(
                f"plugins takes names, '-name', '-*', 'module:Class', Plugin classes and instances; found {plugin!r}"
            )
        kind = class_of(plugin)
        if not hasattr(plugin, "name"):
            raise TypeError(f'plugin class {kind.__name__} has no name: give it one, name = "..."')
        if (reason := unsuited(kind)) is not None:
            raise PluginError(f"plugin {kind.name!r} ({kind.origin()}) {reason}")
        if not any(plugin is other for other in self.plugins):
            self.plugins.append(plugin)

    def choose(self, kind: str, value: Any, is_option: bool) -> bool:
        """Choose among the plugins of one kind, a group or a tag: ``logger="tensorboard"``, ``logger=False``.

        True, None and "auto" leave it to the defaults. Where a keyword ``is_option`` too, only what is a plugin or the name
        of one is meant for the kind. Returns whether ``value`` was for the kind.
        """
        classes = [*(found.plugin for found in self.found.values() if found.plugin), *self.classes]
        of_kind = [plugin for plugin in classes if kind in plugin.names() and kind != plugin.name]
        names = {plugin.name for plugin in of_kind} if kind not in ROLES else set()
        if value == "auto":
            value = next((plugin.name for plugin in of_kind if is_default_here(plugin)), "auto")
        is_plugin = isinstance(value, (type, Plugin)) or (isinstance(value, str) and value in names)
        if not names or (is_option and not is_plugin):
            return False
        if value is None or value is True or value == "auto":
            return True
        self.chosen.add(kind)
        for entry in value if isinstance(value, (list, tuple)) else [value] if value is not False else []:
            if isinstance(entry, str) and ":" not in entry and entry not in names:
                raise PluginError(
                    f"there is no {kind} {entry!r}.{nearest(entry, names)} There are {', '.join(sorted(names))}"
                )
            self.add(entry)
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


def class_of(plugin: type[Plugin] | Plugin) -> type[Plugin]:
    """The class of a plugin that is given as one or as an instance."""
    return plugin if isinstance(plugin, type) else type(plugin)


def is_default_here(plugin: type[Plugin]) -> bool:
    """Whether it is a default only because of where this process is."""
    return plugin.is_default() and not plugin.default


def from_environment(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What ``LIGHTLOOP_PLUGINS`` lists: the entries of ``plugins`` that are strings, with commas between them."""
    return [entry.strip() for entry in environ.get("LIGHTLOOP_PLUGINS", "").split(",") if entry.strip()]
