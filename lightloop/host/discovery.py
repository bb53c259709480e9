"""Discover the installed plugins; a broken one does not affect the others."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

from lightloop.host.found import OWN_DISTRIBUTION, Found, PluginError, unsuited
from lightloop.host.local import LOCAL, local_plugins
from lightloop.host.nearest import nearest
from lightloop.host.plugin import Plugin
from lightloop.warning import NOT_THE_USERS, warn

GROUP = "lightloop.plugins"
"""The group of entry points."""


def discover(entries: Iterable[EntryPoint] | None = None, environ: Mapping[str, str] = os.environ) -> dict[str, Found]:
    """Return the plugins of all installed distributions by name, sorted by name.

    ``LIGHTLOOP_WITHOUT=a,b`` leaves plugins out before anything of theirs is imported, ``LIGHTLOOP_DISCOVER=0`` all that
    are not Lightloop's own. One that cannot be imported is warned of; with ``LIGHTLOOP_STRICT=1`` it is an error.

    The plugins of a file ``lightloop_local.py`` beside the program that runs are among them; ``LIGHTLOOP_LOCAL`` has the
    path of another, or 0 for none.

    Raises:
        PluginError: if two distributions give different plugins one name, or a plugin is broken under
            ``LIGHTLOOP_STRICT=1``.
    """
    without = {name for each in environ.get("LIGHTLOOP_WITHOUT", "").split(",") if (name := each.strip())}
    own_only = environ.get("LIGHTLOOP_DISCOVER", "1") == "0"
    installed, unreadable = read_entry_points(GROUP) if entries is None else (list(entries), [])
    if own_only:
        unreadable = []
    installed = sorted(installed, key=lambda entry: entry.name)
    with _collector_at_rest(installed):
        found = _installed(installed, without, own_only)
    found |= {each.name: each for each in unreadable if each.name not in {*found, *without}}
    if not own_only and LOCAL not in without:
        _add_local(found, local_plugins(environ), without)
    for name in without - {*found, LOCAL, *(each.name for each in unreadable)}:
        warn_once(f"LIGHTLOOP_WITHOUT leaves out {name!r}, and there is no such plugin.{nearest(name, found)}")
    for each in found.values():
        if each.error is not None:
            message = f"plugin {each} is left out; it {each.problem}"
            if is_strict(environ):
                raise PluginError(message) from each.error
            warn_once(message)
    return dict(sorted(found.items()))


def is_strict(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an installed plugin that fails is an error, although nothing asks for it."""
    return environ.get("LIGHTLOOP_STRICT", "0") == "1"


def read_entry_points(group: str) -> tuple[list[EntryPoint], list[Found]]:
    """The entry points of all distributions in ``group``, and those distributions whose metadata cannot be read."""
    try:
        return list(_entry_points(group, _search_path())), []
    except Exception:  # that of one distribution; which one is not told
        entries: dict[tuple[str, str], EntryPoint] = {}
        unreadable = []
    for each in distributions():
        try:
            for entry in each.entry_points.select(group=group):
                entries.setdefault((entry.name, entry.value), entry)
        except Exception as error:
            name, problem = _folder_of(each), f"has entry points that cannot be read: {type(error).__name__}: {error}"
            unreadable.append(Found(name, "", name, "", error=PluginError(problem)))
    return list(entries.values()), unreadable


@lru_cache(maxsize=4)
def _entry_points(group: str, found_in: object) -> tuple[EntryPoint, ...]:
    """Those of all distributions; reading them takes longer than a small run, so they are kept while ``found_in`` is the same."""
    return tuple(entry_points(group=group))


def _search_path() -> tuple[object, ...]:
    """Where distributions are looked for, and when something was last installed or removed there."""
    return (*sys.meta_path, *((path or os.getcwd(), _changed(path or os.curdir)) for path in sys.path))


def _changed(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _folder_of(distribution: Distribution) -> str:
    """What a distribution is called whose metadata does not say it: as its folder is."""
    path = getattr(distribution, "_path", None)
    return str(getattr(path, "stem", path or "an unknown distribution"))


def _installed(entries: Iterable[EntryPoint], without: set[str], own_only: bool) -> dict[str, Found]:
    """The plugins of ``entries`` by name; of two with one name, the one that is not left out."""
    found: dict[str, Found] = {}
    for entry in entries:
        try:
            one = Found(entry.name, entry.value, *_origin(entry))
        except Exception as error:
            problem = f"has metadata that cannot be read: {type(error).__name__}: {error}"
            owner = _folder_of(entry.dist) if entry.dist else "an unknown distribution"
            if entry.name not in without and not own_only:
                found.setdefault(entry.name, Found(entry.name, entry.value, owner, "", error=PluginError(problem)))
            continue
        other = found.get(entry.name)
        if entry.name in without:
            found[entry.name] = replace(one, left_out_by="LIGHTLOOP_WITHOUT")
        elif own_only and one.distribution != OWN_DISTRIBUTION:
            found.setdefault(entry.name, replace(one, left_out_by="LIGHTLOOP_DISCOVER=0"))
        elif other is None or other.left_out_by:
            found[entry.name] = _loaded(one, entry)
        elif other.value != one.value:
            raise PluginError(
                f"two distributions call a plugin {one.name!r}: {other.distribution} ({other.value}) and {one.distribution} "
                f"({one.value}). Uninstall one of them, or set LIGHTLOOP_WITHOUT={one.name} to run without both"
            )
    return found


def _add_local(found: dict[str, Found], local: Iterable[Found], without: set[str]) -> None:
    for one in local:
        if one.name in without:
            found.setdefault(one.name, replace(one, left_out_by="LIGHTLOOP_WITHOUT"))
        elif one.name in found:
            other = found[one.name]
            raise PluginError(
                f"a plugin of {one.value.partition(':')[0]} and one of {other.distribution} ({other.value}) are both called "
                f"{one.name!r}. Rename yours, or set LIGHTLOOP_WITHOUT={one.name} to run without both"
            )
        else:
            found[one.name] = one


@contextmanager
def _collector_at_rest(entries: Sequence[EntryPoint]) -> Iterator[None]:
    """Freeze existing objects before plugins are imported, so that the garbage collector does not scan them.

    So many imports bring about a collection that would look through all of torch, which takes longer than they do.
    """
    if any(entry.value.partition(":")[0].strip() in sys.modules for entry in entries) or gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _origin(entry: EntryPoint) -> tuple[str, str]:
    """Name and version of an entry point's distribution."""
    return ("an unknown distribution", "") if entry.dist is None else _name_and_version(entry.dist)


@lru_cache(maxsize=64)
def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Parsed from its metadata once, and not for each of its entry points."""
    metadata = distribution.metadata
    return metadata["Name"] or _folder_of(distribution), metadata["Version"] or ""


@cache
def warn_once(message: str) -> None:
    """Warn, unless this process has done so."""
    warn(message)  # where the Trainer was made


def _loaded(found: Found, entry: EntryPoint) -> Found:
    """``found`` with its class, or with the error that keeps it out."""
    try:
        if not re.fullmatch(r"[\w.]+\s*(:\s*[\w.]+\s*)?(\[.*\])?\s*", entry.value):
            raise PluginError(f"has the entry point {entry.value!r}, which must be 'package.module:Class'")
        plugin = entry.load()
        if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
            raise TypeError(f"{entry.value} is not a subclass of lightloop.Plugin")
        if not hasattr(plugin, "name"):
            raise TypeError(f"{entry.value} has no name")
        if plugin.name != entry.name:
            raise ValueError(f"its entry point is called {entry.name!r} and its class {plugin.name!r}; they must agree")
        if (reason := unsuited(plugin)) is not None:
            raise PluginError(reason)
        if found.distribution != OWN_DISTRIBUTION and (reason := _fault(plugin)) is not None:
            raise PluginError(reason)
    except (Exception, SystemExit) as error:
        return replace(found, error=error)
    if found.distribution == OWN_DISTRIBUTION:
        NOT_THE_USERS.add(plugin.__module__.partition(".")[0])
    plugin.distribution = f"{found.distribution} {found.version}".rstrip()
    return replace(found, plugin=plugin)


def _fault(plugin: type[Plugin]) -> str | None:
    """Why it cannot even be asked whether ``plugin`` is live by default."""
    try:
        plugin.is_default()
    except Exception as error:
        return f"cannot be used: is_default() raises {type(error).__name__}: {error}"
    return None
