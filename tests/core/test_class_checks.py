"""What a plugin's class says of itself is refused where it makes no sense, with what to write in its place."""

from __future__ import annotations

from typing import Any

import pytest

from lightloop import Plugin, Trainer, option
from lightloop.testing import Probe, probe_batches
from tests.core.test_manager import installed, make, of_hooks


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"ranks": "master"}, "Bad.ranks must be 'all' or 'main'; it is 'master'."),
        (
            {"ranks": {"setup": "mian"}},
            "Bad.ranks['setup'] must be 'all' or 'main'; it is 'mian'. Did you mean 'main'?",
        ),
        ({"on_failure": "ignore"}, "Bad.on_failure must be 'stop' or 'disable'; it is 'ignore'."),
        (
            {"on_failure": "disabled"},
            "Bad.on_failure must be 'stop' or 'disable'; it is 'disabled'. Did you mean 'disable'?",
        ),
        (
            {"disturbs": ("parametres",)},
            "Bad.disturbs must be 'parameters' or 'gradients' or 'random' or 'modes' or 'waiting'; it is 'parametres'. "
            "Did you mean 'parameters' or 'gradients'?",
        ),
        ({"disturbs": "random"}, "Bad.disturbs must be a tuple of names; write ('random',)"),
        *(
            ({name: (3,)}, f"Bad.{name} has 3, which is no name; write names in quotes, such as ('clip',)")
            for name in ("before", "after", "requires", "conflicts", "tags", "replaces", "arguments", "disturbs")
        ),
        ({"after": (Plugin,)}, f"Bad.after has {Plugin!r}, which is no name; write names in quotes, such as ('clip',)"),
        ({"after": None}, "Bad.after must be a tuple of names, such as ('clip',); it is None"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_class_is_made(declared, said):
    with pytest.raises(TypeError) as info:
        make("bad", **declared)
    assert str(info.value) == said


@pytest.mark.parametrize(
    "name", ["group", "tags", "key", "state_dict", "ranks", "on_failure", "name", "disturbs", "validate"]
)
def test_an_option_does_not_take_the_name_of_an_attribute_of_every_plugin(name):
    with pytest.raises(TypeError) as info:
        type("Wandb", (Plugin,), {"name": "wandb", name: option("x", "Help."), "__annotations__": {name: str}})
    flag = f"wandb_{name}"
    assert f"has the name of an attribute that each plugin has: call it '{name}_', and keep its keyword" in str(
        info.value
    )
    if name != "name":
        assert f"{name}_: ... = option(..., flag={flag!r})" in str(info.value)
    renamed = make("wandb", **{f"{name}_": option("x", "Help.", flag=flag)})
    assert getattr(renamed(), f"{name}_") == "x"


@pytest.mark.parametrize("name", ["step", "before_epoch", "forward"])
def test_nor_that_of_a_hook(name):
    with pytest.raises(TypeError, match=f"option '{name}' of Bad has the name of a hook: call it '{name}_'"):
        make("bad", **{name: option(1, "Help.")})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"flag": "plugins"}, "the Trainer has the keyword 'plugins' for itself; give it another flag"),
        ({"flag": "self"}, "the Trainer has the keyword 'self' for itself; give it another flag"),
        ({"aliases": ("plugins",)}, "the Trainer has the keyword 'plugins' for itself; give it another flag"),
        (
            {"flag": "my flag"},
            "'my flag' can be no keyword; a flag is a word of letters, digits and _, such as 'my_flag'",
        ),
        (
            {"flag": "my-flag"},
            "'my-flag' can be no keyword; a flag is a word of letters, digits and _, such as 'my_flag'",
        ),
        ({"flag": "class"}, "'class' can be no keyword"),
        ({"flag": "3d"}, "'3d' can be no keyword"),
    ],
)
def test_a_flag_is_a_keyword(how, said):
    with pytest.raises(TypeError) as info:
        make("bad", size=option(1, "Help.", **how))
    assert str(info.value).startswith(f"option 'size' of Bad: {said}")


def test_a_mutable_default_says_what_to_write_and_that_works():
    for default, factory in (([], "list"), ({}, "dict"), (set(), "set"), ([1], "lambda: [1]")):
        with pytest.raises(TypeError) as info:
            option(default, "Help.")
        assert str(info.value).endswith(f"write option(help=..., default_factory={factory})")
    with pytest.raises(TypeError, match=r"takes a default, option.0, .*, or a default_factory"):
        option(help="Help.")

    class Lists(Plugin):
        name = "lists"
        sizes: list[int] = option(help="Sizes.", default_factory=list)

    one, other = Lists(), Lists()
    one.sizes.append(3)
    assert (one.sizes, other.sizes, Lists(sizes=[4]).sizes) == ([3], [], [4])


def test_an_option_from_a_factory_is_a_keyword_like_any_other(capsys):
    from lightloop.cli.plugins import details
    from lightloop.host.selection import Selection

    kind: Any = type(
        "Lists",
        (Plugin,),
        {
            "name": "lists",
            "sizes": option(help="Sizes.", default_factory=list),
            "__annotations__": {"sizes": list},
            "__module__": __name__,
        },
    )
    found = installed(kind)
    assert Selection(found, [], {"lists_sizes": []}).live == []
    assert Selection(found, [], {"lists_sizes": [1]}).live[0].sizes == [1]
    assert "lists_sizes: list = []" in details(found["lists"])
    assert Trainer(["-*", kind]).lists_sizes == []


def test_a_tag_that_is_nearly_a_role_is_warned_of():
    plugin = of_hooks("mine", tags=("stop", "save", "logger", "watches"))
    with pytest.warns(UserWarning, match="the tag ") as warned:
        Trainer(["-*", plugin])
    assert [str(each.message).partition(", which")[0] for each in warned] == [
        f"plugin 'mine' ({of_hooks.__module__}): the tag 'stop' is nearly 'stops'",
        f"plugin 'mine' ({of_hooks.__module__}): the tag 'save' is nearly 'saves'",
    ]


def test_a_subclass_of_trainer_may_set_attributes_before_it_is_made():
    class Mine(Trainer):
        def __init__(self, **options):
            self.mine = 3
            self.max_epochs_of_mine = 4
            super().__init__(["-*"], **options)

    trainer = Mine(max_epochs=2)
    assert (trainer.mine, trainer.max_epochs_of_mine, trainer.max_epochs) == (3, 4, 2)
    assert trainer.fit(Probe(), probe_batches(1)).epoch == 2
    with pytest.raises(AttributeError, match="options are set at construction"):
        trainer.max_epochs = 3

    class Unfinished(Trainer):
        def __init__(self):
            _ = self.nothing

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        Unfinished()
