"""The order of plugins: from their declarations alone, the same whatever came first."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightloop import OrderError, Plugin
from lightloop.host.order import Order
from lightloop.toolkit import discover, in_order


def make(name, *, before=(), after=(), group=None, tags=()):
    places = {"name": name, "before": before, "after": after, "group": group, "tags": tags}
    return type(name, (Plugin,), {**places, "__module__": __name__})()


def names(plugins):
    return [plugin.name for plugin in plugins]


def gradient_plugins():
    return [
        make("clip", after=("strategy", "precision", "grad_norm", "nonfinite")),
        make("nonfinite", after=("strategy", "precision", "grad_norm")),
        make("grad_norm", after=("strategy", "precision")),
        make("amp", group="precision", after=("strategy",)),
        make("ddp", group="strategy", after=("accelerator",)),
        make("cpu", group="accelerator"),
    ]


def test_every_order_of_arrival_gives_one_order():
    for arrival in permutations(gradient_plugins()):
        assert names(in_order(arrival)) == ["cpu", "ddp", "amp", "grad_norm", "nonfinite", "clip"]


def test_names_decide_where_nothing_else_does():
    for arrival in permutations([make("b"), make("a"), make("c"), make("B")]):
        assert names(in_order(arrival)) == ["B", "a", "b", "c"]


def test_a_declaration_moves_no_more_than_it_must():
    plugins = [make("a", after=("d",)), make("b"), make("c"), make("d"), make("e")]
    for arrival in permutations(plugins):
        assert names(in_order(arrival)) == ["b", "c", "d", "a", "e"]


def test_before_and_after_mean_names_groups_and_tags():
    plugins = [
        make("z-csv", tags=("logger", "file")),
        make("a-board", tags=("logger",)),
        make("m", before=("logger",)),
        make("b", after=("file",)),
        make("zz", group="strategy"),
        make("aa", after=("strategy",)),
    ]
    for arrival in permutations(plugins):
        assert names(in_order(arrival)) == ["m", "a-board", "z-csv", "b", "zz", "aa"]


def test_who_is_absent_is_ignored():
    assert names(in_order([make("b", before=("nobody",)), make("a", after=("nobody", "nothing"))])) == ["a", "b"]


def test_who_names_its_own_kind_means_the_others():
    assert names(in_order([make("a", tags=("logger",), after=("logger",)), make("b", tags=("logger",))])) == ["b", "a"]


def test_several_of_one_name_keep_the_order_in_which_they_are_given():
    first, second, third = make("stop"), make("stop"), make("stop")
    for twins in permutations([first, second, third]):
        for position in range(4):
            arrival = [*twins[:position], make("clip"), *twins[position:]]
            assert in_order(arrival)[1:] == list(twins)
    assert names(in_order([second, make("late", after=("stop",)), first])) == ["stop", "stop", "late"]


def test_nothing_at_all():
    assert in_order([]) == []


NAMES = "abcdef"


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=10), st.permutations(NAMES))
def test_any_declarations_give_one_order_that_keeps_them_or_one_error(edges, arrival):
    before = {name: tuple(sorted({b for a, b in edges if a == name and a < b})) for name in NAMES}
    after = {name: tuple(sorted({b for a, b in edges if a == name and a > b})) for name in NAMES}
    plugins = {name: make(name, before=before[name], after=after[name]) for name in NAMES}
    order = names(in_order(plugins[name] for name in arrival))
    assert order == names(in_order(plugins[name] for name in NAMES))
    for name in NAMES:
        assert all(order.index(name) < order.index(other) for other in before[name])
        assert all(order.index(name) > order.index(other) for other in after[name])


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=10), st.permutations(NAMES))
def test_arrival_never_changes_the_outcome(edges, arrival):
    plugins = {name: make(name, before=tuple(b for a, b in edges if a == name)) for name in NAMES}

    def outcome(order):
        try:
            return names(in_order(plugins[name] for name in order))
        except OrderError as error:
            return str(error)

    assert outcome(arrival) == outcome(NAMES)


def test_a_cycle_says_who_declared_what():
    plugins = [make("a", before=("b",)), make("b", before=("c",)), make("c", before=("a",)), make("d", after=("a",))]
    for arrival in permutations(plugins):
        with pytest.raises(OrderError) as info:
            in_order(arrival)
        assert str(info.value) == (
            "the plugins ask for an order that cannot be: a -> b -> c -> a\n"
            "  a runs before b: a says before='b'\n"
            "  b runs before c: b says before='c'\n"
            "  c runs before a: c says before='a'\n"
            "Take one of these away."
        )


def test_a_cycle_through_groups_tags_and_after():
    plugins = [make("clip", after=("precision",)), make("amp", group="precision", after=("clip",))]
    with pytest.raises(OrderError) as info:
        in_order(plugins)
    assert str(info.value) == (
        "the plugins ask for an order that cannot be: amp -> clip -> amp\n"
        "  amp runs before clip: clip says after='precision'\n"
        "  clip runs before amp: amp says after='clip'\n"
        "Take one of these away."
    )


def test_a_cycle_of_two_of_one_name():
    plugins = [make("stop"), make("mid", after=("stop",), before=("stop",))]
    with pytest.raises(OrderError, match="mid -> stop -> mid"):
        in_order(plugins)


def test_each_place_has_a_reason():
    order = Order([make("clip", after=("precision", "nobody")), make("amp", group="precision", before=("clip",))])
    assert order.why("amp", "clip") == ("clip says after='precision'", True)
    assert order.why("clip", "amp") is None
    assert Order([make("stop"), make("stop")]).why("stop", "stop") == (
        "two 'stop' keep the order in which they are listed",
        True,
    )


# ------------------------------------------------------------------------------------------- those that are not live


def after_all_before(absent):
    """For each plugin, the names of those that come before it by any chain of declarations."""
    before = {plugin.name: set() for plugin in absent}
    for plugin in absent:
        for other in absent:
            if other is not plugin and (other.names() & {*plugin.after} or plugin.names() & {*other.before}):
                before[plugin.name].add(other.name)
    for _ in before:
        for name, earlier in before.items():
            before[name] = earlier.union(*(before[other] for other in earlier))
    return before


def test_to_be_after_an_absent_plugin_is_to_be_after_what_that_one_is_after():
    look, amp = make("a_look", after=("clip",)), make("precision")
    clip = make("clip", after=("precision",))
    for arrival in permutations([look, amp]):
        assert names(in_order(arrival)) == ["a_look", "precision"]
        assert names(in_order(arrival, [clip])) == ["precision", "a_look"]
    order = Order([look, amp], [clip])
    assert order.why("precision", "a_look") == (
        "a_look says after='clip', clip says after='precision'; not live: clip",
        False,
    )


@given(
    st.sets(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), max_size=12),
    st.sets(st.sampled_from("abcdefgh")),
    st.permutations("abcdefgh"),
)
def test_any_part_of_the_plugins_keeps_the_order_of_the_whole(edges, live, arrival):
    rank = {name: index for index, name in enumerate("hbgdface")}  # so that names and places disagree
    after = {n: tuple(sorted(a for a, b in edges if b == n and rank[a] < rank[n])) for n in arrival}
    plugins = [make(name, after=after[name]) for name in arrival]
    there = [plugin for plugin in plugins if plugin.name in live]
    order = Order(there, [plugin for plugin in plugins if plugin.name not in live])
    before, found = after_all_before(plugins), names(order.plugins)
    assert found == names(in_order(reversed(there), sorted(plugins, key=lambda plugin: plugin.name)))
    for index, name in enumerate(found):
        assert not before[name] & set(found[index:])
        for other in found[:index]:
            assert (order.why(other, name) is not None) == (other in before[name])


def test_any_of_the_installed_ones_keep_the_order_of_all_of_them():
    kinds = [found.plugin for found in discover().values() if found.plugin]
    whole, before = Order(kinds), after_all_before(kinds)
    assert whole.passed_over == {}
    draw = random.Random(0)
    for _ in range(60):
        live = draw.sample(kinds, draw.randint(2, 20))
        found = names(in_order(live, kinds))
        for index, name in enumerate(found):
            assert not before[name] & set(found[index:])


def test_what_is_installed_and_has_nothing_to_do_with_them_moves_no_plugin():
    live = [make("a"), make("b", after=("c",)), make("c")]
    assert names(in_order(live, [make("zz", before=("a",)), make("0", after=("c",))])) == names(in_order(live))


def test_an_absent_one_that_contradicts_the_rest_is_passed_over_and_named():
    live = [make("clip", after=("precision",)), make("precision")]
    built_in = make("norm", after=("precision",), before=("clip",))
    stranger = make("odd", after=("clip",), before=("precision",))
    for rest in permutations([built_in, make("useful", after=("norm",))]):
        order = Order(live, [*rest, stranger])
        assert names(order.plugins) == ["precision", "clip"]
        assert order.passed_over == {
            "odd": "clip -> odd -> precision -> clip\n"
            "  clip runs before odd: odd says after='clip'\n"
            "  odd runs before precision: odd says before='precision'\n"
            "  precision runs before clip: clip says after='precision'"
        }
    with pytest.raises(OrderError, match="clip -> odd -> precision -> clip"):
        in_order([*live, stranger], [built_in])


def test_a_live_plugin_stands_for_the_absent_one_of_its_name():
    mine, theirs = make("clip"), make("clip", after=("precision",))
    assert names(in_order([mine, make("precision")], [theirs])) == ["clip", "precision"]
