"""Information on an installed plugin, usable or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from lightloop.host.plugin import Plugin

OWN_DISTRIBUTION = "lightloop"
"""The distribution whose plugins are Lightloop's own."""


class PluginError(Exception):
    """A plugin is missing, broken, or in conflict with another."""


@dataclass(frozen=True)
class Found:
    """An installed plugin: its class, or the error that prevents its use."""

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
        if isinstance(self.error, PluginError):
            return str(self.error)
        return f"cannot be imported: {type(self.error).__name__}: {self.error}" if self.error else None

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}".rstrip()


def hint(name: str, found: Iterable[Found]) -> str:
    """A sentence on what to write in place of ``name``, such as "Trainer.benchmark"; empty where no plugin has a hint."""
    hints = (each.plugin.hints.get(name) for each in found if each.plugin)
    return next((f" Instead: {instead}." for instead in hints if instead), "")


def unsuited(plugin: type[Plugin]) -> str | None:
    """Return why a plugin does not work with this version of Lightloop, as the end of a sentence; None if it does."""
    if plugin.works_with is None:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        versions = SpecifierSet(plugin.works_with)
    except InvalidSpecifier:
        return f"has works_with = {plugin.works_with!r}, which is no specifier of PEP 440, such as '>=0.1,<2'"
    if versions.contains(here := _own_version(), prereleases=True):
        return None
    return f"works with lightloop {plugin.works_with}, and this is {here}: install another version of one of them"


@cache
def _own_version() -> str:
    return version("lightloop")
