"""A keyword that is the group or tag of plugins chooses among them."""

import pytest

from lightloop import Found, Plugin, PluginError, option
from lightloop.host.selection import Selection


class plain(Plugin):
    name, tags, default = "plain", ("scribe",), True


class fancy(Plugin):
    name, tags = "fancy", ("scribe",)


class other(Plugin):
    name, default = "other", True


FOUND = {plugin.name: Found(plugin.name, "tests", "tests", "1", plugin) for plugin in (plain, fancy, other)}


def live(*listed, **options):
    return [plugin.name for plugin in Selection(FOUND, listed, options).live]


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (True, ["other", "plain"]),
        (None, ["other", "plain"]),
        ("auto", ["other", "plain"]),
        (False, ["other"]),
        ((), ["other"]),
        ("fancy", ["fancy", "other"]),
        (["fancy", "plain"], ["fancy", "other", "plain"]),
        (fancy(), ["fancy", "other"]),
        (fancy, ["fancy", "other"]),
    ],
    ids=str,
)
def test_the_kind_of_plugins_is_a_keyword(value, chosen):
    assert live(scribe=value) == chosen


def test_what_is_listed_stays():
    assert live("fancy", scribe=False) == ["fancy", "other"]


def test_a_name_that_is_not_of_the_kind_is_an_error():
    with pytest.raises(
        PluginError, match=r"there is no scribe 'fance'\. Did you mean 'fancy'\? There are fancy, plain"
    ):
        live(scribe="fance")
    with pytest.raises(PluginError, match="there is no scribe 'other'"):
        live(scribe="other")


def test_a_kind_that_nobody_is_of_is_an_unknown_option():
    with pytest.raises(TypeError, match="no option 'writer'"):
        live(writer="fancy")


class anything(Plugin):
    name, group = "anything", "scribe"
    kind: str | None = option(None, "What it is.", flag="scribe")


class grouped(Plugin):
    name, group, default = "grouped", "scribe", True


@pytest.mark.parametrize(
    ("value", "chosen"),
    [("grouped", ["grouped"]), ("else", ["anything"]), (None, ["grouped"]), (grouped(), ["grouped"])],
    ids=str,
)
def test_an_option_of_that_name_has_what_is_no_plugins_name(value, chosen):
    found = {plugin.name: Found(plugin.name, "tests", "tests", "1", plugin) for plugin in (anything, grouped)}
    live = Selection(found, (), {"scribe": value}).live
    assert [plugin.name for plugin in live] == chosen
    assert getattr(live[0], "kind", "else") == "else"
