"""What of a plugin a resumed run has back (its ``state``), and what each process makes anew (``transient``)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightloop.host.options import options_of

if TYPE_CHECKING:
    from lightloop.host.plugin import Plugin

KINDS = ("state", "transient")


def declare(cls: type[Plugin]) -> None:
    """Join the declarations of ``cls`` with those of its bases; what it says itself of an attribute counts.

    Raises:
        TypeError: if a declaration is no tuple of names, or an attribute is declared as both.
    """
    own = {kind: cls.__dict__.get(kind, ()) for kind in KINDS}
    hints = inspect.get_annotations(cls)
    for kind, names in own.items():
        option = kind in hints and "ClassVar" not in str(hints[kind])
        if option or not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"{cls.__qualname__}.{kind} must be a tuple of names of attributes, such as {kind} = ('count',); it is "
                f"{'an option' if option else repr(names)}. An attribute or option of the plugin's own needs another name"
            )
    if both := set(own["state"]) & set(own["transient"]):
        raise TypeError(f"{cls.__qualname__} declares {', '.join(sorted(both))} as state and as transient: keep one")
    said = {name for names in own.values() for name in names}
    for kind, names in own.items():
        inherited = [name for base in cls.__bases__ for name in getattr(base, kind, ()) if name not in said]
        setattr(cls, kind, tuple(dict.fromkeys((*inherited, *names))))
    keys = [key(name) for name in cls.state]
    if twins := {name for name in cls.state if keys.count(key(name)) > 1}:
        raise TypeError(
            f"{cls.__qualname__}.state has {', '.join(sorted(twins))}, which are saved under one key: rename one"
        )


def key(name: str) -> str:
    """The key under which the attribute ``name`` is saved: without the underscores before it."""
    return name.lstrip("_")


def undeclared(plugin: Plugin) -> list[str]:
    """The attributes of ``plugin`` that are no option and are declared neither as state nor as transient."""
    options = {field.name for field in options_of(type(plugin)).values()}
    known = {*options, *type(plugin).state, *type(plugin).transient, *HOST}
    return sorted(name for name in vars(plugin) if name not in known)


HOST = ("_key", "key")
"""The attributes of a plugin that belong to the host."""


_PLAIN = (int, float, bool, str, type(None))


def saved(value: Any) -> Any:
    """``value`` as plain data: a copy of containers, a list for a set, and what an object's own ``state_dict`` gives."""
    if type(value) in _PLAIN:
        return value
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if isinstance(value, Mapping):
        return {name: saved(part) for name, part in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return type(value)(saved(part) for part in value) if type(value) in (list, tuple) else value


def restored(now: Any, value: Any) -> Any:
    """What :func:`saved` made ``value`` of, in the form of the attribute's value ``now``."""
    if hasattr(now, "load_state_dict"):
        now.load_state_dict(value)
        return now
    return type(now)(value) if isinstance(now, (set, frozenset)) else saved(value)
