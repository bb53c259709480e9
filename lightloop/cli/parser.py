"""The parser of ``fit`` and its like: every option of every installed plugin, those of the module and the data function."""

from __future__ import annotations

import argparse
import os
import re
import types
import typing
import warnings
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from lightloop.cli.front import UsageError
from lightloop.cli.objects import find
from lightloop.cli.options import find_values
from lightloop.cli.plugins import live
from lightloop.host.discovery import discover
from lightloop.host.found import Found
from lightloop.host.keywords import known_options
from lightloop.host.nearest import nearest
from lightloop.host.options import OPTION, default_of, hints_of, options_of, type_name
from lightloop.host.plugin import Plugin

PLAIN = (bool, int, float, str, list, tuple, dict, type(None))
ORDER = (type(None), bool, int, float)
"""Of the parts of a union, these are tried first, in this order; a string fits everything and is tried last."""


def make_parser(stage: str, arguments: list[str]) -> Any:
    """A parser of jsonargparse that knows the Trainer's ``options`` with their types, and which of their names are ``old``."""
    try:
        import jsonargparse
    except ImportError as error:
        raise UsageError(f"lightloop {stage} needs jsonargparse: pip install 'lightloop[cli]'") from error
    named = find_values(arguments, ("module", "data"))

    class Parser(jsonargparse.ArgumentParser):
        options: dict[str, str]
        old: set[str]

        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            raise UsageError(reworded(" ".join(message.split()), self.options, self.old)) from ex

    usage = f"lightloop {stage} [--config FILE] [--module MODULE:CLASS] [--data MODULE:FUNCTION] [--OPTION VALUE ...]"
    parser = Parser(f"lightloop {stage}", description=_about(stage), usage=usage, allow_abbrev=False)
    parser.options, parser.old = {}, set()
    _add_own(parser, stage)
    with warnings.catch_warnings():
        if {"-h", "--help"} & set(arguments):
            warnings.simplefilter("ignore")
        found = discover()
    for each in found.values():
        if each.plugin is not None:
            _add_plugin(parser, each, each.plugin)
    _add_kinds(parser, found)
    for what, name in named.items():
        _add_arguments_of(parser, find(name, what), what)
    return parser


def reworded(message: str, options: Mapping[str, str], old: Collection[str]) -> str:
    """An error of jsonargparse in our words; ``old`` names of options are not proposed."""
    known = {"module", "data", *options}.difference(old)
    if (found := re.search(r"[Uu]nrecognized arguments: --([\w.-]+)", message)) is not None:
        return f"there is no option --{found[1]}.{nearest(found[1], known)}"
    if (found := re.search(r"(?:Key|Option) ['\"]([\w.]+)['\"] is not (?:accepted|expected)", message)) is not None:
        return f"there is no option {found[1]!r}.{nearest(found[1], known)}"
    if (found := re.search(r'Parser key "([\w.]+)".*Given value: (.*)$', message)) is not None:
        return f"{found[1]} must be {options.get(found[1], 'of another type')}; it is {found[2]!r}"
    return message


def _about(stage: str) -> str:
    return (
        f"{stage.capitalize()} with a module and data, from flags and config files. Each option below belongs to a plugin, "
        "which is live where the option asks for it."
    )


def _add_own(parser: Any, stage: str) -> None:
    parser.add_argument("--config", action="config", help="A file of YAML or JSON with any of these options.")
    add = _adder(parser)
    add("--module", str, "The module: package.module:Class or file.py:Class; its arguments are --module_args.NAME.")
    add("--data", str, "A function that gives the data, or a mapping with train, val, test, predict; by default the "
        "module's own loaders. Its arguments are --data_args.NAME.")  # fmt: skip
    add("--plugins", list[str] | str, "Plugins to add or leave out: ema,-progress,package.module:Class.")
    add("--weights", str, "A file of the module's state_dict, made by torch.save.")
    add(
        "--output", str, "Where the fitted state_dict, the metrics (JSON) or the predictions (predictions.pt) are kept."
    )


def _add_arguments_of(parser: Any, target: Any, what: str) -> None:
    """Those with which the module's class, or the function that gives the data, is called."""
    if isinstance(target, type):
        parser.add_class_arguments(target, f"{what}_args", fail_untyped=False)
    elif callable(target) and not hasattr(target, "parameters"):
        parser.add_function_arguments(target, f"{what}_args", fail_untyped=False)


def _add_plugin(parser: Any, found: Found, plugin: type[Plugin]) -> None:
    fields = options_of(plugin)
    if not fields:
        return
    about = " ".join((plugin.__doc__ or "").strip().split("\n\n")[0].split())
    add = _adder(parser.add_argument_group(f"{found} ({live(found)})", about))
    hints = hints_of(plugin)
    for keyword, field in fields.items():
        option = field.metadata[OPTION]
        help = f"{option.help} (default: {default_of(field)!r})"
        add(f"--{keyword}", parsable(hints.get(field.name, Any)), help)
        parser.options[keyword] = type_name(field)
        for alias in option.aliases:
            add(f"--{alias}", Any, argparse.SUPPRESS)
            parser.options[alias] = type_name(field)
            parser.old.add(alias)


def _add_kinds(parser: Any, found: Mapping[str, Found]) -> None:
    """Groups and tags choose among their plugins: ``--logger csv``."""
    plugins = [each.plugin for each in found.values() if each.plugin is not None]
    kinds: dict[str, list[str]] = {}
    for plugin in plugins:
        for kind in plugin.names() - {plugin.name}:
            kinds.setdefault(kind, []).append(plugin.name)
    known = known_options(found)
    add = _adder(parser.add_argument_group("kinds of plugins"))
    for kind, names in sorted(kinds.items()):
        if kind not in known and kind.isidentifier():
            add(f"--{kind}", bool | list[str] | str | None, f"One or several of {', '.join(names)}; false for none.")
            parser.options[kind] = "bool | list[str] | str | None"


def _adder(to: Any) -> Any:
    def add(flag: str, kind: Any, help: str) -> None:
        try:
            to.add_argument(flag, type=kind, default=argparse.SUPPRESS, help=help)
        except ValueError:  # a type that it does not know
            to.add_argument(flag, type=Any, default=argparse.SUPPRESS, help=help)

    return add


def parsable(hint: Any) -> Any:
    """The part of a type that can be written on a command line."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in map(parsable, typing.get_args(hint)) if part is not None]
        parts.sort(key=lambda part: ORDER.index(part) if part in ORDER else len(ORDER) + (part is str))
        return typing.Union[tuple(parts)] if parts else Any  # noqa: UP007  # made of a list
    if hint is os.PathLike or typing.get_origin(hint) is os.PathLike:
        return str
    if hint in PLAIN or typing.get_origin(hint) is typing.Literal:
        return hint
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, (typing.Mapping, typing.Sequence)):
        return hint
    return Any if hint in (Any, object) else None


__all__ = ["make_parser", "parsable"]
