"""What the class of a plugin says of itself is refused where it makes no sense, when the class is made."""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightloop.host.nearest import nearest
from lightloop.host.options import OPTION

if TYPE_CHECKING:
    from lightloop.host.plugin import Plugin

NAMES = ("before", "after", "requires", "conflicts", "tags", "replaces", "arguments", "disturbs")
DISTURBS = ("parameters", "gradients", "random", "modes", "waiting")
"""What a plugin may say that it disturbs."""
RANKS = ("all", "main")
ON_FAILURE = ("stop", "disable")
HOOKS: set[str] = set()
"""The names of the loop's hooks, which no option can have; the loop fills them in."""
TAKEN = ("plugins", "self")
"""Keywords that the Trainer has for itself."""


def check_class(cls: type[Plugin]) -> None:
    """Refuse what ``cls`` declares and cannot mean.

    Raises:
        TypeError: with the attribute, what was found, and what to write.
    """
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field) and OPTION in value.metadata:
            _check_option(cls, name, value.metadata[OPTION])
    for attribute in NAMES:
        _check_names(cls, attribute)
    for what in cls.disturbs:
        _check_choice(f"{cls.__qualname__}.disturbs", what, DISTURBS)
    _check_choice(f"{cls.__qualname__}.on_failure", cls.on_failure, ON_FAILURE)
    if isinstance(cls.ranks, Mapping):
        for hook, where in cls.ranks.items():
            _check_choice(f"{cls.__qualname__}.ranks[{hook!r}]", where, RANKS)
    else:
        _check_choice(f"{cls.__qualname__}.ranks", cls.ranks, RANKS)


def _check_names(cls: type[Plugin], attribute: str) -> None:
    names: Any = getattr(cls, attribute)
    where = f"{cls.__qualname__}.{attribute}"
    if isinstance(names, str):
        raise TypeError(f"{where} must be a tuple of names; write ({names!r},)")
    if not isinstance(names, (tuple, list, set, frozenset)):
        raise TypeError(f"{where} must be a tuple of names, such as ('clip',); it is {names!r}")
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{where} has {wrong[0]!r}, which is no name; write names in quotes, such as ('clip',)")


def _check_choice(where: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise TypeError(f"{where} must be {' or '.join(map(repr, choices))}; it is {value!r}.{hint}")


def _check_option(cls: type[Plugin], name: str, option: Any) -> None:
    where, mine = f"option {name!r} of {cls.__qualname__}", getattr(cls, "name", None)
    flag = option.flag or f"{mine if isinstance(mine, str) else cls.__name__.lower()}_{name}".replace("-", "_")
    base: type = next(each for each in cls.__mro__ if each.__name__ == "Plugin")
    if hasattr(base, name) or name in base.__annotations__ or name in HOOKS:
        what = "a hook" if name in HOOKS else "an attribute that each plugin has"
        raise TypeError(
            f"{where} has the name of {what}: call it '{name}_', and keep its keyword, {name}_: ... = option(..., flag={flag!r})"
        )
    for each in (*([option.flag] if option.flag else []), *option.aliases):
        if each in TAKEN:
            raise TypeError(f"{where}: the Trainer has the keyword {each!r} for itself; give it another flag")
        if not each.isidentifier() or keyword.iskeyword(each):
            raise TypeError(
                f"{where}: {each!r} can be no keyword; a flag is a word of letters, digits and _, such as "
                f"{'_'.join(''.join(c if c.isalnum() else ' ' for c in each).split()) or 'size'!r}"
            )
