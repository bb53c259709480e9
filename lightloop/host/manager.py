"""Hold the live plugins to the contract, register them in order, and explain the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from lightloop.host.bytecode import works_after_yield
from lightloop.host.dispatch import CLEAN_UP, OWN, Relay
from lightloop.host.found import PluginError
from lightloop.host.hook_checks import check_answers, check_hooks, check_places
from lightloop.host.order import Order
from lightloop.host.plugin import Plugin

OWN_ANSWER = "the loop's own answer"


@dataclass(frozen=True)
class Caller:
    """One that is called in a hook."""

    key: str | None
    """The plugin's; None is the loop's own answer."""
    wrapper: bool = False
    reason: str = ""
    """Which declaration put it behind those that are called before it."""
    ends: bool = False
    """Whether this is what a wrapper does after its yield, which has a place of its own where a declaration speaks of it."""


class _Registry(pluggy.PluginManager):
    """Looks for marked methods on the class alone, which takes a tenth of the time that pluggy's own search takes."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return getattr(getattr(type(plugin), name, None), "lightloop_impl", None)


class Manager:
    """The live plugins of a run, in order, and the relay that calls their hooks.

    Args:
        plugins: the live plugins, in order.
        operations: the loop's own answers.
        specs: the class that specifies the loop's hooks, in the order of a run.
        absent: the other plugins that had a part in the order, for :meth:`explain`.
    """

    def __init__(
        self, plugins: Sequence[Plugin], operations: object, specs: type, absent: Sequence[type[Plugin]] = ()
    ) -> None:
        self.plugins = list(plugins)
        self._absent = absent
        self._specs = specs
        self._pluggy = _Registry("lightloop")
        self._pluggy.add_hookspecs(specs)
        self._add_hooks()
        self._pluggy.register(operations, OWN)
        hooks = self._hooks()
        self.doubts = [doubt for plugin in plugins for doubt in check_hooks(plugin, hooks)]
        """What the plugins' authors are to be warned of."""
        for plugin in reversed(self.plugins):
            self._pluggy.register(plugin, plugin.key)
        check_answers(hooks)
        check_places(self.plugins, hooks)

    def relay(self) -> Relay:
        """What calls the hooks of one run."""
        return Relay(self._pluggy)

    @property
    def hook_names(self) -> list[str]:
        """Every hook that there is, the core's in the order of a run."""
        return list(self._hooks())

    def _add_hooks(self) -> None:
        """Take in the hooks that plugins bring."""
        added: set[type] = set()
        for plugin in self.plugins:
            for specs in set(plugin.hookspecs) - added:
                try:
                    self._pluggy.add_hookspecs(specs)
                except ValueError as error:
                    raise PluginError(f"plugin {plugin.name!r} brings hooks that cannot be added: {error}") from error
            added.update(plugin.hookspecs)

    def _hooks(self) -> dict[str, pluggy.HookCaller]:
        """Every hook that is specified: the core's in the order of a run, then the others by name."""
        callers = vars(self._pluggy.hook).items()
        specified = {name: each for name, each in callers if isinstance(each, pluggy.HookCaller) and each.has_spec()}
        own = [name for name in vars(self._specs) if name in specified]
        brought = sorted(specified.keys() - own)
        if taken := [name for name in brought if hasattr(Relay, name)]:
            raise PluginError(
                f"a plugin brings a hook {taken[0]!r}, which the relay of hooks has for itself: rename it"
            )
        return {name: specified[name] for name in (*own, *brought)}

    def chains(self) -> dict[str, list[Caller]]:
        """For each hook that a plugin implements, in the order of a run, who is called; the loop's own answer after them.

        What a wrapper does after its yield comes last of all, and is there where something is declared to come before it.
        """
        order = Order(self.plugins, self._absent)
        chains: dict[str, list[Caller]] = {}
        for hook in self.hook_names:
            impls = getattr(self._pluggy.hook, hook).get_hookimpls()
            if hook not in CLEAN_UP:
                impls = impls[::-1]
            seen: list[pluggy.HookImpl] = []
            for impl in impls:
                if impl.plugin_name == OWN:
                    continue
                reason = _reason(order, seen, impl, in_reverse=hook in CLEAN_UP)
                chains.setdefault(hook, []).append(Caller(impl.plugin_name, impl.wrapper, reason))
                seen.append(impl)
            if seen and any(impl.plugin_name == OWN for impl in impls):
                chains[hook].append(Caller(None))
            for wrapper in [impl for impl in reversed(seen) if impl.wrapper]:
                if reason := "; ".join(_said_before(order, seen, wrapper)):
                    chains[hook].append(Caller(wrapper.plugin_name, True, reason, ends=True))
        return chains

    def explain(self) -> str:
        """The :meth:`chains` as text, and what put each plugin where it is."""
        lines = []
        for hook, callers in self.chains().items():
            lines.append(hook + (" (in reverse)" if hook in CLEAN_UP else ""))
            for number, caller in enumerate(callers, 1):
                kind = " after its yield" if caller.ends else " around the rest" if caller.wrapper else ""
                reason = f"  [{caller.reason}]" if caller.reason else ""
                lines.append(f"  {number}. {caller.key or OWN_ANSWER}{kind}{reason}")
        if not lines:
            return "no plugin is live: the loop's own answers are all there is"
        return "\n".join([*lines, *Order(self.plugins, self._absent).passed_over_lines()])


def _reason(order: Order[Plugin], seen: Sequence[pluggy.HookImpl], impl: pluggy.HookImpl, in_reverse: bool) -> str:
    """What puts ``impl`` behind those that are called before it, ``seen``."""
    name, others = _name(impl), [_name(other) for other in seen]
    pairs = [(name, other) if in_reverse else (other, name) for other in others]
    reasons = [reason for pair in pairs if (reason := order.why(*pair)) is not None]
    said = [reason.text for reason in reasons if reason.direct] or [reason.text for reason in reasons[-1:]]
    alike = [other for other in seen if (other.wrapper, other.tryfirst) == (impl.wrapper, impl.tryfirst)]
    if not said and alike:
        said = ["by name"]
    for other in seen:  # pluggy calls wrappers, and what is marked tryfirst, before the rest
        if other in alike or in_reverse or (other.wrapper and works_after_yield(other.function)):
            continue
        if (against := order.why(name, _name(other))) and against.direct:
            mark = "is a wrapper and does nothing after its yield" if other.wrapper else "says tryfirst=True"
            said.append(f"not here: {against.text}, but {_name(other)} {mark}")
    return "; ".join(said)


def _said_before(order: Order[Plugin], seen: Sequence[pluggy.HookImpl], wrapper: pluggy.HookImpl) -> list[str]:
    """What puts the end of ``wrapper`` behind those that are no wrappers."""
    plain = [other for other in seen if not other.wrapper] if works_after_yield(wrapper.function) else []
    reasons = [order.why(_name(other), _name(wrapper)) for other in plain]
    return [reason.text for reason in reasons if reason is not None and reason.direct]


def _name(impl: pluggy.HookImpl) -> str:
    plugin: Any = impl.plugin
    return str(plugin.name)


__all__ = ["OWN_ANSWER", "Caller", "Manager"]
