"""The reference is written from the code, and nothing is missing in it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import lightloop
import lightloop.testing
import lightloop.toolkit
from lightloop import Hooks
from lightloop.host.options import OPTION, options_of
from lightloop.toolkit import discover
from lightloop_plugins.checkpoint.commands.front import ACTIONS

DOCS = Path(__file__).parents[2] / "docs"
EXTENSION = DOCS / "_ext" / "lightloop_reference.py"
HOOKS = {name: spec for name, spec in vars(Hooks).items() if hasattr(spec, "lightloop_spec")}
OURS = {name: found.plugin for name, found in discover().items() if found.distribution == "lightloop"}


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("lightloop_reference", EXTENSION)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(text):
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]


def cell(text):
    return text.strip().strip("`")


def test_every_part_has_its_place_on_a_page(reference):
    pages = [path.read_text() for path in (DOCS / "reference").glob("*.md")]
    wanted = [mark for page in pages for mark in reference.MARK.findall(page)]
    assert sorted(wanted) == sorted(reference.PARTS)


def test_every_hook_is_there_in_order_with_who_implements_it(reference):
    text = reference.hooks()
    assert re.findall(r"^## (\w+)$", text, flags=re.MULTILINE) == list(HOOKS)
    assert re.findall(r"automethod:: lightloop\.Hooks\.(\w+)", text) == list(HOOKS)
    assert "clip" in reference.implementers("before_step")
    assert "clip" not in reference.implementers("forward")


def test_the_hooks_that_plugins_bring_are_there(reference):
    brought = [name for plugin in OURS.values() for specs in plugin.hookspecs for name in vars(specs) if name[0] != "_"]
    assert brought
    assert re.findall(r"^## (\w+)$", reference.brought_hooks(), flags=re.MULTILINE) == brought


def test_every_option_is_there_with_type_default_and_help(reference):
    found = {cell(row[0]): row for row in rows(reference.options())[2:]}
    wanted = {keyword: (name, field) for name, plugin in OURS.items() for keyword, field in options_of(plugin).items()}
    assert set(found) == set(wanted)
    for keyword, (name, field) in wanted.items():
        _, plugin, kind, default, help = found[keyword]
        assert f"[{name}]" in plugin
        assert cell(kind).replace(r"\|", "|") == field.type
        assert cell(default).replace(r"\|", "|") == repr(field.default)
        assert re.sub(r"\\(.)", r"\1", help.strip()) == field.metadata[OPTION].help


def test_every_old_name_is_there(reference):
    found = {cell(row[0]): cell(row[1]) for row in rows(reference.aliases())[2:]}
    assert found == {
        alias: keyword
        for plugin in OURS.values()
        for keyword, field in options_of(plugin).items()
        for alias in field.metadata[OPTION].aliases
    }


def test_every_plugin_is_there_with_its_place_and_its_options(reference):
    listed = [re.match(r" \[(\w+)\]", row[0])[1] for row in rows(reference.plugin_list())[2:]]
    assert listed == list(OURS)
    text = reference.plugin_pages()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert list(sections) == list(OURS)
    for name, plugin in OURS.items():
        section = sections[name]
        assert f"autoclass:: {plugin.__module__}.{plugin.__qualname__}" in section
        assert [cell(row[0]) for row in rows(section)[2:]] == list(options_of(plugin))
        for other in (*plugin.before, *plugin.after, *plugin.requires, *plugin.conflicts, *plugin.replaces):
            assert f"`{other}`" in section
        assert [hook for hook in HOOKS if f"[{hook}](hooks.md" in section] == [
            hook for hook in HOOKS if name in reference.implementers(hook)
        ]


def test_every_command_is_there_with_what_it_says_of_itself(reference):
    entries = importlib.metadata.entry_points(group="lightloop.commands")
    ours = sorted(entry.name for entry in entries if entry.dist.name == "lightloop")
    text = reference.commands()
    sections = dict(re.findall(r"^## lightloop ([\w-]+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert list(sections) == ours != []
    for name, section in sections.items():
        assert f"usage: lightloop {name}" in section
    assert "every option of every installed plugin" in sections["fit"]
    for action in ACTIONS:
        assert f"### lightloop checkpoint {action}\n" in sections["checkpoint"]
        assert f"usage: lightloop checkpoint {action} " in sections["checkpoint"]
    assert len(sections["fit"].splitlines()) < 80


@pytest.mark.parametrize(
    ("part", "module"), [("names", lightloop), ("toolkit", lightloop.toolkit), ("testing", lightloop.testing)]
)
def test_every_public_name_is_there(reference, part, module):
    text = reference.PARTS[part]()
    assert re.findall(r"^## (\w+)$", text, flags=re.MULTILINE) == module.__all__
    directives = re.findall(
        rf"auto(?:class|function|data):: {re.escape(module.__name__)}\.(\w+)$", text, flags=re.MULTILINE
    )
    by_hand = {"Hooks", "ROLES", "hookimpl", "hookspec"} & set(module.__all__)
    assert set(directives) == set(module.__all__) - by_hand


@pytest.mark.parametrize(
    "module", [lightloop, lightloop.testing, lightloop.toolkit], ids=lambda module: module.__name__
)
def test_every_public_class_and_function_says_what_it_is(module):
    silent = [
        name
        for name in module.__all__
        if (inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value)) and not inspect.getdoc(value)
    ]
    assert silent == []


def test_the_readme_lists_every_plugin():
    text = (DOCS.parent / "README.md").read_text()
    listed = re.findall(r"`(\w+)`", text.split("<!-- plugins -->")[1])
    assert sorted(listed) == sorted(OURS), "run python docs/_make/readme.py"


def test_every_link_of_the_pages_leads_somewhere():
    broken = []
    for page in [DOCS.parent / "README.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        broken += [f"{page.name}: {target}" for target in targets if not (page.parent / target).exists()]
    assert broken == []
