"""Find the installed plugins, without letting a broken one stop the others."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from lightloop.plugin import Plugin

GROUP = "lightloop.plugins"


class PluginError(Exception):
    """A plugin is missing, broken, or at odds with another."""


@dataclass(frozen=True)
class Found:
    """An installed plugin: its class, or what keeps it out."""

    name: str
    value: str
    """Where it is: ``package.module:Class``."""
    distribution: str
    version: str
    plugin: type[Plugin] | None = None
    error: BaseException | None = None
    left_out_by: str | None = None
    """The environment variable that keeps it out, if one does."""

    @property
    def problem(self) -> str | None:
        """Why there is no class, as the end of a sentence that begins with the plugin's name."""
        if self.left_out_by:
            return f"is left out by {self.left_out_by}"
        return f"cannot be imported: {type(self.error).__name__}: {self.error}" if self.error else None

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}"


def discover(entries: Iterable[EntryPoint] | None = None, environ: Mapping[str, str] = os.environ) -> dict[str, Found]:
    """The plugins of all installed distributions by name, in the order of their names.

    ``LIGHTLOOP_WITHOUT=a,b`` leaves plugins out before anything of theirs is imported, ``LIGHTLOOP_DISCOVER=0`` all that
    are not Lightloop's own. One that cannot be imported is warned of; with ``LIGHTLOOP_STRICT=1`` it is an error.

    Raises:
        PluginError: if two distributions give different plugins one name, or a plugin is broken under
            ``LIGHTLOOP_STRICT=1``.
    """
    without = {name.strip() for name in environ.get("LIGHTLOOP_WITHOUT", "").split(",")}
    own_only = environ.get("LIGHTLOOP_DISCOVER", "1") == "0"
    origin = _origins()
    found: dict[str, Found] = {}
    left_out: dict[str, Found] = {}
    for entry in sorted(entry_points(group=GROUP) if entries is None else entries, key=lambda entry: entry.name):
        distribution, version = origin(entry)
        if entry.name in without or (own_only and distribution != "lightloop"):
            by = "LIGHTLOOP_WITHOUT" if entry.name in without else "LIGHTLOOP_DISCOVER=0"
            left_out[entry.name] = Found(entry.name, entry.value, distribution, version, left_out_by=by)
            continue
        if (other := found.get(entry.name)) is not None:
            if other.value == entry.value:
                continue
            raise PluginError(
                f"two distributions call a plugin {entry.name!r}: {other.distribution} ({other.value}) and {distribution} "
                f"({entry.value}). Uninstall one of them, or set LIGHTLOOP_WITHOUT={entry.name} to run without both"
            )
        found[entry.name] = _load(entry, distribution, version)
        if (error := found[entry.name].error) is not None:
            message = f"plugin {found[entry.name]} is left out; it {found[entry.name].problem}"
            if environ.get("LIGHTLOOP_STRICT", "0") == "1":
                raise PluginError(message) from error
            _tell(message)
    return dict(sorted({**left_out, **found}.items()))


def _origins() -> Callable[[EntryPoint], tuple[str, str]]:
    """Name and version of an entry point's distribution, whose metadata is parsed once and not once per entry point."""
    known: dict[int, tuple[str, str]] = {}

    def origin(entry: EntryPoint) -> tuple[str, str]:
        if entry.dist is None:
            return "an unknown distribution", ""
        if id(entry.dist) not in known:
            metadata = entry.dist.metadata
            known[id(entry.dist)] = metadata["Name"], metadata["Version"]
        return known[id(entry.dist)]

    return origin


@cache
def _tell(message: str) -> None:
    """Warn, once in a process."""
    warnings.warn(message, stacklevel=5)  # where the Trainer was made


def _load(entry: EntryPoint, distribution: str, version: str) -> Found:
    try:
        plugin = entry.load()
        if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
            raise TypeError(f"{entry.value} is not a subclass of lightloop.Plugin")
        if not hasattr(plugin, "name"):
            raise TypeError(f"{entry.value} has no name")
        if plugin.name != entry.name:
            raise ValueError(f"its entry point is called {entry.name!r} and its class {plugin.name!r}; they must agree")
    except (Exception, SystemExit) as error:
        return Found(entry.name, entry.value, distribution, version, error=error)
    return Found(entry.name, entry.value, distribution, version, plugin)
