"""Choose the plugins of a run, and leave out an installed one that fails, where it was not asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightloop.exceptions import add_note
from lightloop.host.discovery import is_strict, warn_once
from lightloop.host.found import OWN_DISTRIBUTION, Found, PluginError
from lightloop.host.listing import Entry
from lightloop.host.local import LOCAL
from lightloop.host.manager import Manager
from lightloop.host.options import options_of
from lightloop.host.order import OrderError
from lightloop.host.plugin import Plugin
from lightloop.host.selection import Selection


@dataclass(frozen=True)
class Choice:
    """The live plugins, under their manager, and what is to be said of others."""

    manager: Manager
    left_out: dict[str, str] = field(default_factory=dict)
    """The installed plugins that would be live by default and fail, by name, each with a sentence that says why."""
    unasked: list[str] = field(default_factory=list)
    """A sentence for each plugin of another distribution that is live by default."""


Manage = Callable[[Sequence[Plugin], Sequence[type[Plugin]]], Manager]
"""Makes the manager of live plugins; given those as well that are absent and have a say in the order."""


def choose(
    found: Mapping[str, Found],
    listed: Iterable[Entry],
    options: Mapping[str, Any],
    manage: Manage,
    also: Iterable[str] = (),
) -> Choice:
    """What is live, as :class:`Selection` chooses it, and held to what :class:`Manager` refuses.

    Args:
        found: the installed plugins.
        listed: the plugins that the user lists.
        options: the options that are given, by keyword.
        manage: makes the manager of the live plugins, which refuses what their hooks cannot mean.
        also: plugins that ``LIGHTLOOP_PLUGINS`` lists.

    Raises:
        TypeError, ValueError, PluginError, OrderError: for what the user asked for. An installed plugin that is not
            Lightloop's and fails without having been asked for is left out, unless ``LIGHTLOOP_STRICT=1``.
    """
    listed, also = list(listed), list(also)
    try:
        unasked = _unasked(found, [*listed, *also], options)
        try:
            choice = _chosen(found, listed, options, manage, also)
        except Exception:
            if not unasked or is_strict():
                raise
            choice = _without_the_failing(found, unasked, listed, options, manage, also)
    except Exception as error:
        if also:
            add_note(error, f"LIGHTLOOP_PLUGINS lists {', '.join(also)}")
        raise
    live = {plugin.name for plugin in choice.manager.plugins}
    told = [
        f"plugin {found[name]} is installed and live by default: list {name!r} in plugins, or leave it out by '-{name}'"
        for name in unasked
        if name in live
    ]
    return replace(choice, unasked=told)


def tell(choice: Choice) -> Manager:
    """Warn of what ``choice`` has to say, and give the manager of the live plugins."""
    for sentence in (*choice.manager.doubts, *choice.left_out.values(), *choice.unasked):
        warn_once(sentence)
    return choice.manager


def _chosen(
    found: Mapping[str, Found], listed: list[Entry], options: Mapping[str, Any], manage: Manage, also: list[str]
) -> Choice:
    selection = Selection(found, listed, options, also)
    return Choice(manage(selection.live, selection.absent))


def _without_the_failing(
    found: Mapping[str, Found],
    unasked: Iterable[str],
    listed: list[Entry],
    options: Mapping[str, Any],
    manage: Manage,
    also: list[str],
) -> Choice:
    """The choice without those of ``unasked`` that fail, alone or beside the others; they are tried one after another."""
    kept = {name: each for name, each in found.items() if name not in unasked}
    choice, left_out = _chosen(kept, listed, options, manage, also), {}
    for name in unasked:
        try:
            choice = _chosen({**kept, name: found[name]}, listed, options, manage, also)
        except Exception as error:
            said = str(error) if isinstance(error, (PluginError, OrderError)) else f"{type(error).__name__}: {error}"
            left_out[name] = (
                f"plugin {found[name]} is live by default and is left out, since it fails: {said}. Uninstall it, or set "
                f"LIGHTLOOP_WITHOUT={name}"
            )
        else:
            kept[name] = found[name]
    return replace(choice, left_out=left_out)


def _unasked(found: Mapping[str, Found], entries: list[Entry], options: Mapping[str, Any]) -> list[str]:
    """The plugins of other distributions that are live by default, where neither ``entries`` nor ``options`` ask for them."""
    if "-*" in entries:
        return []
    asked = {entry if isinstance(entry, str) else getattr(entry, "name", None) for entry in entries}
    for value in options.values():
        asked |= {each for each in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(each, str)}
    return [
        name
        for name, each in found.items()
        if each.plugin is not None
        and each.distribution != OWN_DISTRIBUTION
        and each.plugin.__module__ != LOCAL
        and each.plugin.is_default()
        and name not in asked
        and not options_of(each.plugin).keys() & options
    ]
