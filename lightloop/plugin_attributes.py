"""Attributes of the Trainer that come from its plugins: options, exposed attributes, and the plugins themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightloop.host.discovery import discover
from lightloop.host.found import hint
from lightloop.host.keywords import kinds, known_options
from lightloop.host.nearest import nearest
from lightloop.host.options import default_of, options_of
from lightloop.host.plugin import Plugin
from lightloop.host.roles import ROLES
from lightloop.loop import Loop
from lightloop.warning import warn


class PluginAttributes:
    """Every option by its keyword, what a live plugin offers, and the live plugin of a group or tag.

    Such as ``trainer.max_epochs``, ``trainer.run_dir`` (:attr:`lightloop.Plugin.exposes`) and ``trainer.logger``, which is
    None where there is none.
    """

    loop: Loop | None
    plugins: list[Plugin]

    def plugin(self, name: str) -> Plugin | None:
        """The plugin of that name that is live in the latest run, or None."""
        return next((plugin for plugin in self._live if plugin.name == name), None)

    @property
    def _live(self) -> Sequence[Plugin]:
        if vars(self).get("loop"):
            return self.loop.plugins  # type: ignore[union-attr]
        return self.plugins if vars(self).get("plugins") else ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("loop", "plugins"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        for plugin in self._live:
            if name in plugin.exposes:
                return getattr(plugin, plugin.exposes[name])
        for plugin in self._live:
            if (field := options_of(type(plugin)).get(name)) is not None:
                return getattr(plugin, field.name)
        for plugin in self._live:
            if name != plugin.name and name in plugin.names() and name not in ROLES:
                return plugin
        return self._of_no_live_plugin(name)

    def _of_no_live_plugin(self, name: str) -> Any:
        """An option of a plugin that is not live, also by an old name, or None for a group or tag."""
        known = self._known_options()
        if name in known:
            today, default = known[name]
            if today != name:
                warn(f"{name!r} is now called {today!r}", DeprecationWarning)
                return getattr(self, today)
            return vars(self).get("_options", {}).get(name, default)  # given to a plugin that it leaves out
        if name in kinds(discover().values()):
            return None
        names = {*dir(self), *(today for today, _ in known.values()), *(each for p in self._live for each in p.exposes)}
        meant = hint(f"Trainer.{name}", discover().values()) or nearest(name, names)
        raise AttributeError(f"Trainer has no attribute {name!r}.{meant}")

    def __setattr__(self, name: str, value: object) -> None:
        own = name.startswith("_") or name in ("loop", "plugins") or hasattr(type(self), name)
        is_made = "loop" in vars(self)  # else a subclass sets it before Trainer.__init__
        if is_made and not own and name in self._known_options():
            raise AttributeError(
                f"options are set at construction, Trainer({name}=...), or for one run, fit(..., {name}=...)"
            )
        super().__setattr__(name, value)

    def _known_options(self) -> dict[str, tuple[str, Any]]:
        """Every option by its keywords, old ones too: today's keyword, and the default."""
        if "_keywords" not in vars(self):
            options = known_options(discover(), [type(plugin) for plugin in self._live])
            self._keywords = {name: (option.keyword, default_of(option.field)) for name, option in options.items()}
        return self._keywords
