"""Writes the reference pages from the code: what a page marks with ``<!-- generated: hooks -->`` is put there.

Every part is made by one function that returns Markdown; a test looks that nothing is missing in them. What stands in
docstrings is reStructuredText, so they are shown through autodoc.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import lightloop
import lightloop.testing
import lightloop.toolkit
from lightloop import Hooks, Plugin
from lightloop.cli.front import main
from lightloop.host.dispatch import CLEAN_UP
from lightloop.host.options import OPTION, default_of, options_of, type_name
from lightloop.testing.accelerators import AcceleratorContract
from lightloop.toolkit import discover

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"^<!-- generated: ([a-z_]+) -->$", re.MULTILINE)
LABEL = re.compile(r"^(When|May change|Default|Order): ")
HOOKS = {name: spec for name, spec in vars(Hooks).items() if hasattr(spec, "lightloop_spec")}


@cache
def plugins() -> dict[str, type[Plugin]]:
    """The plugins that come with Lightloop, by name."""
    found = discover()
    absent = [f"{each} {each.problem}" for each in found.values() if each.distribution == "lightloop" and each.problem]
    if absent:
        raise RuntimeError(f"the reference is of every plugin, and {', '.join(absent)}")
    return {name: each.plugin for name, each in found.items() if each.distribution == "lightloop" and each.plugin}


@cache
def implementers(hook: str) -> list[str]:
    """The plugins that come with Lightloop and implement ``hook``."""
    found = []
    for name, plugin in plugins().items():
        for attribute in dir(plugin):
            marked = getattr(inspect.getattr_static(plugin, attribute), "lightloop_impl", None)
            if marked and (marked["specname"] or attribute) == hook:
                found.append(name)
                break
    return found


def hooks() -> str:
    """Every hook: signature, docstring, kind, and which plugins implement it."""
    parts = []
    for name, spec in HOOKS.items():
        kind = "An operation: the first answer counts." if spec.lightloop_spec["firstresult"] else "Tells."
        if name in CLEAN_UP:
            kind += " Plugins are called in reverse order, and each of them whatever the others raise."
        used = ", ".join(f"[{each}](plugins.md#{anchor(each)})" for each in implementers(name)) or "none"
        parts.append(f"## {name}\n\n{kind} Plugins of Lightloop that implement it: {used}.\n")
        parts.append(rst(f".. automethod:: lightloop.Hooks.{name}"))
    return "\n".join(parts)


def brought_hooks() -> str:
    """The hooks that plugins bring, which other plugins may implement."""
    parts = []
    for name, plugin in plugins().items():
        for specs in plugin.hookspecs:
            for hook, spec in vars(specs).items():
                if hasattr(spec, "lightloop_spec"):
                    parts.append(f"## {hook}\n\nBrought by [{name}](plugins.md#{anchor(name)}).\n")
                    parts.append(rst(f".. automethod:: {specs.__module__}.{specs.__qualname__}.{hook}"))
    return "\n".join(parts)


def options() -> str:
    """Every option of every plugin, by keyword."""
    rows = []
    for name, plugin in plugins().items():
        for keyword, field in options_of(plugin).items():
            rows.append((keyword, f"[{name}](plugins.md#{anchor(name)})", *about(field), field.metadata[OPTION].help))
    return table(
        ("keyword", "plugin", "type", "default", "meaning"),
        [
            (f"`{keyword}`", plugin, kind, default, escape(help))
            for keyword, plugin, kind, default, help in sorted(rows)
        ],
    )


def aliases() -> str:
    """Every old name of an option."""
    rows = [
        (f"`{alias}`", f"`{keyword}`", f"[{name}](plugins.md#{anchor(name)})")
        for name, plugin in plugins().items()
        for keyword, field in options_of(plugin).items()
        for alias in field.metadata[OPTION].aliases
    ]
    return table(("old name", "today's", "plugin"), sorted(rows))


def plugin_list() -> str:
    """Every plugin in a line."""
    rows = []
    for name, plugin in plugins().items():
        first = escape(plain(first_line(plugin)))
        switches = [f"`{keyword}`" for keyword, field in options_of(plugin).items() if field.metadata[OPTION].enables]
        live = "by default" if plugin.default else ", ".join(switches) or "when it is listed"
        rows.append((f"[{name}](#{anchor(name)})", first, live))
    return table(("plugin", "what it does", "what makes it live"), rows)


def plugin_pages() -> str:
    """Every plugin: what it does, where it stands, what it can be told."""
    parts = []
    for name, plugin in plugins().items():
        parts.append(f"## {name}\n")
        parts.append(rst(f".. autoclass:: {plugin.__module__}.{plugin.__qualname__}\n   :no-members:"))
        parts.append(place(plugin))
        if own := options_of(plugin):
            rows = [
                (f"`{keyword}`", *about(field), escape(field.metadata[OPTION].help)) for keyword, field in own.items()
            ]
            parts.append(table(("option", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def place(plugin: type[Plugin]) -> str:
    """Where a plugin stands among the others."""
    labels = {
        "before": "runs before",
        "after": "runs after",
        "requires": "needs",
        "conflicts": "cannot be with",
        "replaces": "leaves out",
        "tags": "is also called",
    }
    lines = [
        f"* file: `{plugin.__module__.replace('.', '/')}`",
        f"* live: {'by default' if plugin.default else 'when asked for'}",
    ]
    if plugin.group:
        lines.append(f"* group: `{plugin.group}`, of which one is live")
    for attribute, words in labels.items():
        if names := getattr(plugin, attribute):
            lines.append(f"* {words}: {', '.join(f'`{name}`' for name in names)}")
    if plugin.exposes:
        lines.append(
            f"* the trainer has, while it is live: {', '.join(f'`trainer.{name}`' for name in plugin.exposes)}"
        )
    here = [f"[{hook}](hooks.md#{anchor(hook)})" for hook in HOOKS if plugin.name in implementers(hook)]
    lines.append(f"* hooks: {', '.join(here) or 'none'}")
    return "\n".join(lines) + "\n"


def names() -> str:
    """Every public name of the package, through autodoc."""
    return "\n".join(documented(lightloop, name) for name in lightloop.__all__)


def toolkit() -> str:
    """Every tool for plugins, through autodoc."""
    return "\n".join(documented(lightloop.toolkit, name) for name in lightloop.toolkit.__all__)


def testing() -> str:
    """Every public name of the testing kit, through autodoc."""
    return "\n".join(documented(lightloop.testing, name) for name in lightloop.testing.__all__)


SUITES = {
    "tests/accelerators/test_contract.py": ("{}", "`make test`"),
    "tests/horovod/test_horovod.py": ("{}", "`make test-horovod`"),
    "tests/xla/test_xla.py": ("{}", "`make test-xla`"),
    "scripts/gpu_check.py": ("{} on GPUs", "needs {}"),
}
"""Where the contract of accelerators is run: how the accelerator is called, and what a cell says."""


def contract() -> str:
    """Each accelerator that is held to the contract, row by row: which suite runs it, or which hardware that takes."""
    rows = [name for kind in AcceleratorContract.__mro__[::-1] for name in vars(kind) if name.startswith("test_")]
    columns = {name.replace("one on GPUs", "gpu"): cells for name, cells in contract_columns(rows)}
    body = [(row.removeprefix("test_").replace("_", " "), *(columns[name][row] for name in columns)) for row in rows]
    return table(("row", *columns), body)


def contract_columns(rows: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Read from the source, for what it imports is not installed everywhere."""
    for file, (title, cell) in SUITES.items():
        found: dict[str, dict[str, object]] = {}
        for node in ast.parse((ROOT / file).read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test") and node.bases:
                own = {
                    each.targets[0].id: getattr(each.value, "value", None)
                    for each in node.body
                    if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
                }
                own |= {each.name: ast.get_docstring(each) for each in node.body if isinstance(each, ast.FunctionDef)}
                found[node.name] = {**found.get(ast.unparse(node.bases[0]), {}), **own}
        for name, own in found.items():
            says = cell.format("two GPUs" if own.get("ranks") == 2 else "a GPU")
            cells = {row: f"{own[row] or 'another test'}: {says}" if row in own else says for row in rows}
            if own.get("reduces") is False:
                cells["test_held_steps_do_not_reduce"] += ", by its numbers"
            yield title.format(name.removeprefix("Test").lower()), cells


def commands() -> str:
    """What each command of ``lightloop`` says of itself."""
    parts = [f"```text\n$ lightloop --help\n{ask().rstrip()}\n```\n"]
    for name in command_names():
        text, _, options = ask(name).partition("\n'accelerator' of ")
        text = text.rstrip() + ("\n\nThen every option of every installed plugin." if options else "")
        parts.append(f"## lightloop {name}\n\n```text\n$ lightloop {name} --help\n{text}\n```\n")
        for action in actions(name):
            said = ask(name, action).rstrip()
            parts.append(f"### lightloop {name} {action}\n\n```text\n$ lightloop {name} {action} --help\n{said}\n```\n")
    return "\n".join(parts)


def command_names() -> list[str]:
    """The commands that come with Lightloop."""
    found = metadata.entry_points(group="lightloop.commands")
    return sorted(entry.name for entry in found if entry.dist is not None and entry.dist.name == "lightloop")


def actions(name: str) -> list[str]:
    """The words that a command takes first, each of which has a help of its own."""
    found = re.search(rf"^usage: lightloop {name} \[-h\] \{{([\w,]+)\}}", ask(name))
    return found[1].split(",") if found else []


@cache
def ask(*words: str) -> str:
    """What ``lightloop <words> --help`` prints, on a terminal of 100 columns."""
    printed = io.StringIO()
    before = os.environ.copy()
    os.environ.update({"COLUMNS": "100", "NO_COLOR": "1"})
    try:
        with contextlib.redirect_stdout(printed):
            code = main([*words, "--help"])
    finally:
        os.environ.clear()
        os.environ.update(before)
    if code:
        raise RuntimeError(f"lightloop {' '.join(words)} --help ends with {code}")
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())


def documented(module: Any, name: str) -> str:
    """One public name under a heading of its own, by what it is."""
    value = getattr(module, name)
    full = f"{module.__name__}.{name}"
    if name == "Hooks":
        body = "The contract between the loop and its plugins; [Hooks](hooks.md) shows each of them.\n"
    elif name in ("hookimpl", "hookspec"):
        mark = "hook implementations" if name == "hookimpl" else "hook specifications, of hooks that a plugin brings"
        body = f"The decorator that marks {mark}: pluggy's marker for the project `lightloop`.\n"
    elif isinstance(value, type):
        body = rst(f".. autoclass:: {full}\n   :members:\n   :inherited-members: {' '.join(BASES)}")
        body = body if name in INHERIT else rst(f".. autoclass:: {full}\n   :members:")
    elif inspect.isroutine(value):
        body = rst(f".. autofunction:: {full}")
    elif isinstance(value, dict):  # of which autodata would show what Python says of every dict
        body = "| | |\n|---|---|\n" + "".join(f"| `{key}` | {meaning} |\n" for key, meaning in value.items())
    else:
        body = rst(f".. autodata:: {full}")
    return f"## {name}\n\n{body}"


INHERIT = {"Loop", "Trainer"}
"""Classes whose public attributes are spread over bases that have no page of their own."""
BASES = ("object",)


def about(field: Field[Any]) -> tuple[str, str]:
    """Type and default of an option, as cells."""
    return f"`{type_name(field)}`".replace("|", r"\|"), f"`{default_of(field)!r}`".replace("|", r"\|")


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def plain(text: str) -> str:
    """reStructuredText of one sentence as Markdown."""
    text = re.sub(r":\w+:`~?([^`<]+)`", lambda match: f"`{match[1]}`", text)
    return text.replace("``", "`")


def escape(text: str) -> str:
    """``text`` as the cell of a table, where braces, bars and stars mean themselves."""
    text = re.sub(r"(?<!`)([*_|<>{}\[\]])", r"\\\1", text) if "`" not in text else text.replace("|", r"\|")
    return text.replace("\n", " ")


def anchor(name: str) -> str:
    return name.lower()


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


PARTS: dict[str, Callable[[], str]] = {
    "aliases": aliases,
    "commands": commands,
    "contract": contract,
    "hooks": hooks,
    "brought_hooks": brought_hooks,
    "names": names,
    "options": options,
    "plugin_list": plugin_list,
    "plugin_pages": plugin_pages,
    "testing": testing,
    "toolkit": toolkit,
}


def fill(app: Any, page: str, source: list[str]) -> None:
    """Put the generated parts where a page wants them."""
    source[0] = MARK.sub(lambda match: PARTS[match[1]](), source[0])


def label(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make a list of fields of the labelled lines of a hook's docstring, the loop's or a plugin's."""
    if not hasattr(thing, "lightloop_spec"):
        return
    first = True
    for index, line in enumerate(list(lines)):
        if LABEL.match(line):
            lines[index] = ("\n" if first else "") + LABEL.sub(r":\1: ", line)
            first = False
    lines[:] = "\n".join(lines).split("\n")


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", label, priority=100)  # before napoleon, which knows other labels
    return {"parallel_read_safe": True, "parallel_write_safe": True}
