"""``lightloop plugins``."""

from __future__ import annotations

import warnings

from lightloop.cli.front import Parser, UsageError
from lightloop.hookspecs import Hooks
from lightloop.host.discovery import discover
from lightloop.host.found import Found
from lightloop.host.nearest import nearest
from lightloop.host.options import OPTION, default_of, options_of, type_name
from lightloop.host.plugin import Plugin

PLACE = ("group", "tags", "before", "after", "requires", "conflicts", "replaces", "works_with", "ranks", "on_failure")


def plugins(arguments: list[str]) -> int:
    """List the installed plugins, or say all about those that are named."""
    parser = Parser("plugins", plugins)
    parser.add_argument("names", nargs="*", metavar="NAME", help="plugins about which all is said")
    names = parser.parse_args(arguments).names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the list says what is wrong
        found = discover()
    for name in names:
        if name not in found:
            raise UsageError(f"there is no plugin {name!r}.{nearest(name, found)}")
    print("\n\n".join(details(found[name]) for name in names) if names else table(list(found.values())))
    return 0


def table(found: list[Found]) -> str:
    """One line for each plugin."""
    rows = [("NAME", "DISTRIBUTION", "LIVE", "HOOKS")]
    rows += [
        (each.name, f"{each.distribution} {each.version}".strip(), live(each), ", ".join(hooks(each.plugin)))
        for each in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def live(found: Found) -> str:
    """When a plugin is live, or why it cannot be."""
    if found.plugin is None:
        return f"no: it {found.problem}"
    return "by default" if found.plugin.is_default() else "on request"


def hooks(plugin: type[Plugin] | None) -> list[str]:
    """The hooks that a plugin implements, in the order of a run, those of others last."""
    names = {
        getattr(method, "lightloop_impl", {}).get("specname") or name
        for name in dir(plugin or object)
        if hasattr(method := getattr(plugin, name), "lightloop_impl")
    }
    order = list(vars(Hooks))
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def details(found: Found) -> str:
    """What a plugin is for, where it comes from, its place and its options."""
    lines = [f"{found.name}  {found.distribution} {found.version}".rstrip(), f"  from       {found.value}"]
    lines.append(f"  live       {live(found)}")
    if (plugin := found.plugin) is None:
        return "\n".join(lines)
    for attribute in PLACE:
        value = getattr(plugin, attribute)
        if value != getattr(Plugin, attribute):
            lines.append(f"  {attribute:10} {', '.join(value) if isinstance(value, tuple) else value}")
    lines.append(f"  hooks      {', '.join(hooks(plugin)) or 'none'}")
    for keyword, field in options_of(plugin).items():
        lines += [f"  {keyword}: {type_name(field)} = {default_of(field)!r}", f"      {field.metadata[OPTION].help}"]
    about = (plugin.__doc__ or "").strip().split("\n\n")[0]
    return "\n".join([lines[0], f"  {' '.join(about.split())}", *lines[1:]])


__all__ = ["details", "hooks", "live", "plugins", "table"]
