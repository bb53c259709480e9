"""The options of a plugin: the fields declared with :func:`option`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightloop.host.plugin import Plugin

OPTION = "lightloop.option"
"""Under which key the metadata of a field has its :class:`Option`."""


@dataclasses.dataclass(frozen=True)
class Option:
    """The metadata of a plugin's option, created by :func:`option`."""

    help: str
    flag: str | None = None
    switch: bool = False
    enables: bool = True
    aliases: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    neutral: bool = False

    def turns_on(self, value: object, default: object) -> bool:
        """Whether ``value`` enables the plugin: it differs from the default, or the option is a switch and on."""
        if self.switch:
            return bool(value)
        if not self.enables or value is None or value is False:
            return False
        same = value == default  # of arrays, not one answer
        return same is not True or (type(value) is not type(default) and bool(value))  # True is on, where 1 is off


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    default_factory: Callable[[], Any] | None = None,
    flag: str | None = None,
    switch: bool = False,
    enables: bool = True,
    aliases: Iterable[str] | Mapping[str, Callable[[Any], Any]] = (),
    neutral: bool = False,
) -> Any:
    """Declare an option of a :class:`Plugin`: a constructor argument, a Trainer keyword and a command-line flag.

    Args:
        default: the value where none is given; it must be immutable. A list or mapping comes from a ``default_factory``.
        help: one sentence for people: meaning, unit, and which value is off.
        default_factory: makes the default value of each plugin, in place of ``default``: ``list``, ``dict``.
        flag: the keyword; ``<plugin>_<field>`` if None.
        switch: the value says by itself whether the plugin is live: truthy is on, anything else leaves it out.
        enables: False for an option that only tunes a plugin that something else turns on.
        aliases: old keywords, which warn and work; as a mapping, with what makes today's value of an old one.
        neutral: whether the numbers of a run are the same for every value. A run that is resumed with another value of an
            option that is not, of a plugin that has a state or disturbs anything, is warned of it.
    """
    if (default is dataclasses.MISSING) == (default_factory is None):
        raise TypeError(
            "option() takes a default, option(0, ...), or a default_factory, option(default_factory=list, ...)"
        )
    if default is not dataclasses.MISSING and type(default).__hash__ is None:
        kind = type(default).__name__
        raise TypeError(
            f"the default of an option must be immutable, and {default!r} is a {kind}: write "
            f"option(help=..., default_factory={kind if not default else f'lambda: {default!r}'})"
        )
    names = aliases if isinstance(aliases, Mapping) else dict.fromkeys(aliases, _same)
    metadata = {OPTION: Option(help, flag, switch, enables, names, neutral)}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default value of an option."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _same(value: Any) -> Any:
    return value


def options_of(cls: type[Plugin]) -> dict[str, dataclasses.Field[Any]]:
    """Return the options of a plugin class by their Trainer keywords."""
    fields = (field for field in dataclasses.fields(cls) if OPTION in field.metadata)  # type: ignore[arg-type]
    return {keyword(cls, field): field for field in fields}


def keyword(cls: type[Plugin], field: dataclasses.Field[Any]) -> str:
    """Return the Trainer keyword of an option: its flag, or ``<plugin>_<field>``."""
    return field.metadata[OPTION].flag or f"{cls.name}_{field.name}".replace("-", "_")


def describe(cls: type[Plugin], name: str) -> str:
    """Return the name of an option for errors: ``gradient_clip_val (clip.max_norm)``."""
    field = next(field for field in dataclasses.fields(cls) if field.name == name)  # type: ignore[arg-type]
    return f"{keyword(cls, field)} ({cls.name}.{name})"


def fits(value: object, hint: Any) -> bool:
    """Whether ``value`` matches type ``hint``, by a cheap check: a bool is no number, an int is a float."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(hint))
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    if origin is Callable or origin is type(Callable) or hint is Callable:
        return callable(value)
    kind = origin or hint
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is None:
        return value is None
    return isinstance(value, kind) if isinstance(kind, type) and kind not in (object, Any) else True


def hints_of(cls: type) -> dict[str, Any]:
    """The types of the options, worked out once per class."""
    if "_option_types" not in cls.__dict__:
        cls._option_types = _read_hints(cls)  # type: ignore[attr-defined]
    return cls._option_types  # type: ignore[attr-defined, no-any-return]


def _read_hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError:  # a hint that only type checkers can resolve: nothing is checked at run time
        return {}


def type_name(field: dataclasses.Field[Any]) -> str:
    """Return the type of an option as text."""
    return field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
