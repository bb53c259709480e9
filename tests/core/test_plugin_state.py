"""What a plugin declares of its attributes, and what is saved of them."""

import pytest
import torch

from lightloop import Every, Plugin, option
from lightloop.host.plugin_state import undeclared
from lightloop.testing.snapshots import attributes


class Base(Plugin):
    name = "base"
    state = ("count",)
    transient = ("file", "seen")

    size: int = option(1, "How much.")

    def validate(self):
        self.count, self.file, self.seen = 0, None, set()


class Child(Base):
    name = "child"
    state = ("seen", "_rhythm", "rest")

    def validate(self):
        super().validate()
        self._rhythm, self.rest, self.other = Every("3 steps"), [], 1


def test_a_subclass_adds_to_what_its_bases_declare_and_may_say_otherwise():
    assert (Child.state, Child.transient) == (("count", "seen", "_rhythm", "rest"), ("file",))
    assert undeclared(Child()) == ["other"]
    assert undeclared(Base()) == []


def test_what_is_state_is_saved_as_plain_data_and_put_back_in_its_form():
    one, other = Child(), Child()
    tensor = torch.ones(2)
    one.count, one.seen, one.rest = 3, {2, 1}, [(1, {"a": tensor})]
    one._rhythm.load_state_dict({"seen": 5})
    state = one.state_dict()
    assert state == {"count": 3, "seen": [1, 2], "rhythm": {"seen": 5}, "rest": [(1, {"a": tensor})]}
    other.load_state_dict(state)
    assert (other.count, other.seen, other._rhythm.state_dict()) == (3, {1, 2}, {"seen": 5})
    state["rest"].append("of somebody else")
    assert one.rest == other.rest == [(1, {"a": tensor})]
    with pytest.raises(KeyError, match="rhythm"):
        other.load_state_dict({"count": 1, "seen": [], "rest": []})


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"state": "count"}, "must be a tuple of names of attributes, such as state = .*it is 'count'"),
        ({"state": None}, "it is None"),
        ({"transient": ("a", 1)}, "it is .*'a', 1"),
        (
            {"state": 1, "__annotations__": {"state": int}},
            "it is an option. An attribute or option .* needs another name",
        ),
        ({"state": ("a",), "transient": ("a",)}, "declares a as state and as transient: keep one"),
        ({"state": ("_a", "a")}, "has _a, a, which are saved under one key: rename one"),
    ],
)
def test_nonsense_is_refused_where_the_class_is_made(declared, said):
    with pytest.raises(TypeError, match=said):
        type("Wrong", (Plugin,), {"name": "wrong", **declared})


class Annotated(Base):
    name = "annotated"

    rounds: int = 0


def test_a_field_that_is_no_option_is_an_attribute_like_any_other():
    assert undeclared(Annotated()) == ["rounds"]
    one, other = Annotated(), Annotated(rounds=2)
    assert {name: attributes(each).get("rounds") for name, each in (("one", one), ("other", other))} == {
        "one": 0,
        "other": 2,
    }
    assert "size" not in attributes(one)
