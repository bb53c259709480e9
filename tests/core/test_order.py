"""The order of plugins: from their declarations alone, the same whatever came first."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightloop import OrderError, Plugin, in_order
from lightloop.order import places


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


def test_places_gives_the_reason_of_each_edge():
    assert places([make("clip", after=("precision", "nobody")), make("amp", group="precision", before=("clip",))]) == {
        ("amp", "clip"): "clip says after='precision'"
    }
    assert places([make("stop"), make("stop")]) == {
        ("stop", "stop"): "two 'stop' keep the order in which they are listed"
    }
