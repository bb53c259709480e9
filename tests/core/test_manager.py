"""Which plugins are live, in which order, and what is refused before a run, in words that a stranger understands."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import pytest

from lightloop import Found, Hooks, OrderError, Plugin, PluginError, Trainer, hookimpl, hookspec, option
from lightloop.host.manager import Manager
from lightloop.host.selection import Selection
from lightloop.operations import Operations
from lightloop.testing import Probe, probe_batches


def make(name: str, **attributes: Any) -> type[Plugin]:
    """A plugin class; attributes that are options are annotated for it."""
    fields = {key: type(value.default) for key, value in attributes.items() if hasattr(value, "default_factory")}
    return type(
        name.title(), (Plugin,), {"name": name, "__module__": __name__, "__annotations__": fields, **attributes}
    )


def installed(*plugins: type[Plugin], distribution: str = "dist") -> dict[str, Found]:
    return {plugin.name: Found(plugin.name, "module:Class", distribution, "1.0", plugin) for plugin in plugins}


def live(*plugins: type[Plugin], listed: Any = (), **options: Any) -> list[str]:
    return [plugin.name for plugin in Selection(installed(*plugins), listed, options).live]


def refusal(kind: type[BaseException], *plugins: type[Plugin], listed: Any = (), **options: Any) -> str:
    with pytest.raises(kind) as info:
        Manager(Selection(installed(*plugins), listed, options).live, Operations(), Hooks)
    return str(info.value)


def of_hooks(name: str = "bad", **methods: Any) -> Plugin:
    return make(name, **methods)()


def hook_refusal(*plugins: Plugin) -> str:
    with pytest.raises(PluginError) as info:
        Manager(plugins, Operations(), Hooks)
    return str(info.value)


# --------------------------------------------------------------------------------------------------------- who is live


def test_nothing_is_live_unless_asked_for_or_a_default():
    plugins = (
        make("a", default=True),
        make("b", size=option(0, "Size.")),
        make("c"),
        make("d", on=option(True, "On?", switch=True), default=True),
    )
    assert live(*plugins) == ["a", "d"]
    assert live(*plugins, b_size=1) == ["a", "b", "d"]
    assert live(*plugins, b_size=0) == ["a", "d"]
    assert live(*plugins, listed=["c", "-a"]) == ["c", "d"]
    assert live(*plugins, listed=["c", "-*"]) == ["c"]
    assert live(*plugins, d_on=False) == ["a"]


def test_a_default_one_is_out_where_what_it_requires_is():
    base = make("base", default=True)
    user = make("user", default=True, requires=("base",), size=option(0, "Size.", enables=False))
    third = make("third", default=True, requires=("user",))
    assert live(base, user, third) == ["base", "third", "user"]
    assert live(base, user, third, listed=["-base"]) == []
    text = "plugin 'user' requires 'base', which is not live: take '-base' out of plugins"
    assert refusal(PluginError, base, user, third, listed=["user", "-base"]) == text
    assert refusal(PluginError, base, user, third, listed=["-base"], user_size=3) == text


def test_discovered_and_listed_in_every_order_gives_one_order():
    one = make("one", before=("three",))
    two = make("two", after=("kind",))
    three = make("three", tags=("kind",), size=option(0, "Size."))
    four = make("four", default=True, before=("two",))
    for arrival in permutations([one, two, three, four]):
        assert live(*arrival, listed=["one", "two"], three_size=1) == ["four", "one", "three", "two"]
    for listing in permutations([one, two(), "three", "four", f"{__name__}:Listed"]):
        assert live(three, four, listed=listing) == ["four", "listed", "one", "three", "two"]


class Listed(Plugin):
    name = "listed"
    after = ("four",)


def test_listed_twice_is_once():
    a = make("a")
    assert live(a, listed=["a", a, "a"]) == ["a"]


def test_options_reach_the_plugin_they_belong_to():
    one = make("one", size=option(0, "Size."), kind=option("x", "Kind.", flag="kind", enables=False))
    (plugin,) = Selection(installed(one), [], {"one_size": 2, "kind": "y"}).live
    assert (plugin.size, plugin.kind) == (2, "y")


def test_a_listed_class_takes_the_place_of_the_installed_one_of_its_name():
    theirs = make("one", size=option(1, "Size."), default=True)
    ours = type(
        "Ours", (theirs,), {"__module__": __name__, "size": option(2, "Size."), "__annotations__": {"size": int}}
    )
    for listed, size in ((ours, 2), (ours(size=5), 5)):
        (plugin,) = Selection(installed(theirs), [listed], {}).live
        assert (type(plugin), plugin.size) == (ours, size)
    (plugin,) = Selection(installed(theirs), [ours], {"one_size": 3}).live
    assert (type(plugin), plugin.size) == (ours, 3)


def test_a_default_one_gives_way_to_the_one_of_its_group_that_is_asked_for():
    plugins = (make("cpu", group="device", default=True), make("gpu", group="device"))
    assert live(*plugins) == ["cpu"]
    assert live(*plugins, listed=["gpu"]) == ["gpu"]


def test_displaced_plugins_are_out_and_displace_nobody():
    a, b, c = make("a", replaces=("b",)), make("b", replaces=("c",)), make("c")
    assert live(a, b, c, listed=["a", "b", "c"]) == ["a", "c"]
    csv, board = make("csv", tags=("logger",), replaces=("logger",)), make("board", tags=("logger",))
    assert live(csv, board, listed=["csv", "board"]) == ["csv"]
    d, e = make("d", replaces=("e",)), make("e", replaces=("d",))
    assert (
        refusal(PluginError, d, e, listed=["e", "d"])
        == "plugins 'e' and 'd' replace one another: leave all but one out"
    )


def test_a_kind_is_a_keyword_that_chooses_among_its_plugins():
    csv, board = make("csv", tags=("logger",), default=True), make("board", tags=("logger",))
    other = make("other", default=True)
    assert live(csv, board, other, logger="board") == ["board", "other"]
    assert live(csv, board, other, logger=["board", csv()]) == ["board", "csv", "other"]
    assert live(csv, board, other, logger=False) == ["other"]
    for default in (True, None, "auto"):
        assert live(csv, board, other, logger=default) == ["csv", "other"]
    assert refusal(PluginError, csv, board, logger="bord") == (
        "there is no logger 'bord'. Did you mean 'board'? There are board, csv"
    )


# -------------------------------------------------------------------------------------------------- what is asked wrongly


def test_an_unknown_keyword_names_the_nearest():
    plugins = (make("clip", limit=option(0.0, "Limit.", flag="gradient_clip_val")), make("b", size=option(0, "Size.")))
    assert refusal(TypeError, *plugins, gradient_clip=1.0) == (
        "Trainer has no option 'gradient_clip'. Did you mean 'gradient_clip_val'?"
    )
    assert refusal(TypeError, *plugins, zzz=1.0) == "Trainer has no option 'zzz'."
    with pytest.raises(TypeError, match=r"^Trainer has no option 'max_epoch'\. Did you mean 'max_epochs'"):
        Trainer(max_epoch=3)
    renamed = make("new", size=option(0, "Size.", flag="new_size", aliases=("old_size",)))
    assert refusal(TypeError, renamed, olds_size=1) == "Trainer has no option 'olds_size'. Did you mean 'new_size'?"
    tagged = make("csv", tags=("logger",))
    assert refusal(TypeError, tagged, loger="csv") == "Trainer has no option 'loger'. Did you mean 'logger'?"


def test_an_old_keyword_is_told_of_where_the_user_wrote_it():
    with pytest.warns(DeprecationWarning, match="is now called 'max_epochs'") as warned:
        Trainer(["-*"], max_nb_epochs=1).fit(Probe(), probe_batches(1), max_nb_epochs=2)
    assert [warning.filename for warning in warned] == [__file__, __file__]  # elsewhere, Python would not show it


def test_two_plugins_that_claim_one_keyword_are_both_named():
    found = installed(make("a", size=option(0, "Size.", flag="size")), distribution="dist-a")
    found |= installed(make("b", size=option(0, "Size.", flag="size")), distribution="dist-b")
    with pytest.raises(PluginError) as info:
        Selection(found, [], {"size": 1})
    assert Selection(found, ["a"], {}).live[0].name == "a"  # which uses it not
    assert str(info.value) == (
        "two plugins claim the keyword 'size': dist-a's a and dist-b's b. "
        "Leave one out with LIGHTLOOP_WITHOUT=b, or uninstall it"
    )


def test_a_keyword_and_its_old_name():
    one = make("one", size=option(0, "Size.", aliases=("old_size",)))
    with pytest.warns(DeprecationWarning, match="^'old_size' is now called 'one_size'$"):
        (plugin,) = Selection(installed(one), [], {"old_size": 3}).live
    assert plugin.size == 3
    assert refusal(TypeError, one, one_size=1, old_size=1) == (
        "'one_size' and 'old_size' are one option; give 'one_size' alone"
    )


def test_a_value_of_the_wrong_type_or_sense_names_keyword_and_field():
    class Checked(Plugin):
        name = "checked"
        size: int = option(1, "Size.")

        def validate(self) -> None:
            if self.size < 0:
                raise self.invalid("size", "a whole number from 0")

    assert refusal(TypeError, Checked, checked_size="2") == "checked_size (checked.size) must be int; '2' is str"
    assert refusal(TypeError, Checked, checked_size=True) == "checked_size (checked.size) must be int; True is bool"
    assert refusal(ValueError, Checked, checked_size=-2) == (
        "checked_size (checked.size) must be a whole number from 0; it is -2"
    )


def test_an_option_that_only_tunes_says_what_turns_the_plugin_on():
    one = make("one", size=option(0, "Size."), kind=option("x", "Kind.", enables=False))
    assert refusal(TypeError, one, one_kind="y") == (
        "'one_kind' tunes plugin 'one', and nothing turns that on: give one_size"
    )
    two = make("two", kind=option("x", "Kind.", enables=False))
    assert refusal(TypeError, two, two_kind="y") == (
        "'two_kind' tunes plugin 'two', and nothing turns that on: list 'two' in plugins"
    )


def test_an_option_of_a_listed_instance_is_set_there():
    one = make("one", size=option(0, "Size."))
    assert refusal(TypeError, one, listed=[one()], one_size=2) == (
        "'one_size' is an option of 'one', which is listed as an instance: set it there"
    )


@pytest.mark.parametrize("entry", [3, None, object, dict, print])
def test_what_is_no_plugin_is_refused(entry):
    assert refusal(TypeError, listed=[entry]) == (
        f"plugins takes names, '-name', '-*', 'module:Class', Plugin classes and instances; found {entry!r}"
    )


def test_a_plugin_class_needs_a_name():
    class Nameless(Plugin):
        pass

    text = 'plugin class Nameless has no name: give it one, name = "..."'
    assert refusal(TypeError, listed=[Nameless]) == text
    assert refusal(TypeError, listed=[Nameless()]) == text


@pytest.mark.parametrize("plugins", [None, 3, {"max_epochs": 3}])
def test_plugins_must_be_a_list(plugins):
    with pytest.raises(TypeError) as info:
        Trainer(plugins)
    assert str(info.value) == f"plugins must be a list of plugins; it is {plugins!r}. Options are given by keyword"


def test_unknown_names():
    assert refusal(PluginError, make("clip"), listed=["clap"]) == "there is no plugin 'clap'. Did you mean 'clip'?"
    assert refusal(PluginError, make("clip"), listed=["-clap"]) == (
        "there is no plugin 'clap' to leave out. Did you mean 'clip'?"
    )
    assert refusal(PluginError, listed=["nowhere:Thing"]) == (
        "plugin 'nowhere:Thing' cannot be imported: No module named 'nowhere'"
    )
    assert refusal(PluginError, listed=["json:Thing"]) == (
        "plugin 'json:Thing' cannot be imported: module 'json' has no attribute 'Thing'"
    )


def test_asked_for_and_left_out_is_a_contradiction():
    one = make("one", size=option(0, "Size."), default=True)
    assert refusal(PluginError, one, listed=["one", "-one"]) == "plugin 'one' is both listed and left out by '-one'"
    assert refusal(PluginError, one, listed=["-one"], one_size=1) == (
        "'one_size' asks for plugin 'one', which is left out by '-one'"
    )


# -------------------------------------------------------------------------------------- what plugins say of one another


def test_a_missing_requirement_says_how_to_get_it():
    needy = make("needy", requires=("other",))
    start = "plugin 'needy' requires 'other', which is not live: "
    assert refusal(PluginError, needy, listed=["needy"]) == start + "nothing that is installed is called so"
    assert refusal(PluginError, needy, make("other"), listed=["needy"]) == start + "list 'other' in plugins"
    assert refusal(PluginError, needy, make("a", group="other"), make("b", tags=("other",)), listed=["needy"]) == (
        start + "list 'a' or 'b' in plugins"
    )
    assert refusal(PluginError, needy, make("other", default=True), listed=["needy", "-other"]) == (
        start + "take '-other' out of plugins"
    )
    absent = {"other": Found("other", "m:C", "dist", "1.0", left_out_by="LIGHTLOOP_WITHOUT")}
    with pytest.raises(PluginError) as info:
        Selection({**installed(needy), **absent}, ["needy"], {})
    assert str(info.value) == start + "it is left out by LIGHTLOOP_WITHOUT"
    assert live(needy, make("a", tags=("other",)), listed=["needy", "a"]) == ["a", "needy"]


def test_a_conflict_names_both():
    one, two = make("one", conflicts=("kind",)), make("two", group="kind")
    for listed in (["one", "two"], ["two", "one"]):
        assert refusal(PluginError, one, two, listed=listed) == (
            "plugins 'one' and 'two' cannot both be live, 'one' says: leave one out"
        )


def test_two_of_a_group_are_named():
    one, two = make("one", group="device"), make("two", group="device")
    for listed in (["one", "two"], ["two", "one"]):
        assert refusal(PluginError, one, two, listed=listed) == (
            "'one' and 'two' are both of the group 'device', of which one can be live: leave one out"
        )


def test_a_cycle_is_refused_when_the_trainer_is_made():
    one, two = make("one", before=("two",)), make("two", before=("one",))
    assert refusal(OrderError, one, two, listed=["two", "one"]) == (
        "the plugins ask for an order that cannot be: one -> two -> one\n"
        "  one runs before two: one says before='two'\n"
        "  two runs before one: two says before='one'\n"
        "Take one of these away."
    )
    with pytest.raises(OrderError, match="one -> two -> one"):
        Trainer([one, two])


def test_c35_two_of_one_key_are_named_and_keys_tell_them_apart():
    stop = make("stop", size=option(0, "Size."))
    a, b = stop(size=1), stop(size=2)
    assert refusal(PluginError, listed=[a, b]) == (
        "Stop(size=1) and Stop(size=2) would keep their state under one key, 'stop': set the key of one, plugin.key = ..."
    )
    b.key = "stop-late"
    manager = Manager(Selection({}, [a, b], {}).live, Operations(), Hooks)
    assert [plugin.key for plugin in manager.plugins] == ["stop", "stop-late"]
    assert [plugin.key for plugin in Selection({}, [b, a], {}).live] == ["stop-late", "stop"]


def test_nobody_is_called_as_the_loop_is():
    assert refusal(PluginError, make("loop"), listed=["loop"]) == (
        f"a plugin of {__name__} is called 'loop', as the loop itself: rename it"
    )


@pytest.mark.parametrize("attribute", ["before", "after", "requires", "conflicts", "tags", "replaces"])
def test_a_bare_string_is_no_tuple_of_names(attribute):
    with pytest.raises(TypeError, match=rf"Bad\.{attribute} must be a tuple of names; write \('clip',\)"):
        make("bad", **{attribute: "clip"})


# ---------------------------------------------------------------------------------------------------------------- hooks

BAD = f"plugin 'bad' ({__name__}): hook "


def test_c77_a_misspelt_hook_names_the_nearest():
    plugin = of_hooks(after_bacth=hookimpl(lambda self, loop: None))
    assert (
        hook_refusal(plugin)
        == BAD + "'after_bacth' does not exist. Did you mean 'after_batch' or 'after_epoch' or 'after_backward'?"
    )
    plugin = of_hooks(mine=hookimpl(lambda self, loop: None, specname="after_bacth"))
    assert (
        hook_refusal(plugin)
        == BAD + "'mine' does not exist. Did you mean 'after_batch' or 'after_epoch' or 'after_backward'?"
    )


def test_c77_an_unknown_argument_names_the_known_ones():
    plugin = of_hooks(on_error=hookimpl(lambda self, loop, nope: None))
    assert hook_refusal(plugin) == BAD + "'on_error' has no argument 'nope'; it has loop, error"
    plugin = of_hooks(on_error=hookimpl(lambda self, *everything: None))
    assert hook_refusal(plugin) == BAD + "'on_error' has no argument 'everything'; it has loop, error"


def test_arguments_are_plain():
    plugin = of_hooks(on_error=hookimpl(lambda self, loop, error=None: None))
    assert hook_refusal(plugin) == (
        BAD + "'on_error' gives 'error' a default, which would hide the real value: take it away"
    )

    def keyword_only(self, *, loop):
        pass

    assert hook_refusal(of_hooks(after_step=hookimpl(keyword_only))) == (
        BAD + "'after_step' must take 'loop' as a plain argument, without * or /"
    )
    assert hook_refusal(of_hooks(after_step=hookimpl(lambda loop: None))) == (
        BAD + "'after_step' must be a plain method that takes self before its arguments"
    )


def test_wrappers_are_new_style_and_first_come_first():
    def generator(self, loop):
        yield

    def wrapping(hook, function=generator, **how):
        return hook_refusal(of_hooks(**{hook: hookimpl(function, **how)}))

    assert wrapping("step", hookwrapper=True) == (
        BAD + "'step' is an old-style wrapper, whose late errors hide the first: say wrapper=True"
    )
    assert wrapping("step", wrapper=True, trylast=True) == (
        BAD + "'step' says trylast=True, which makes the order depend on who else does: use 'after'"
    )
    assert wrapping("teardown", wrapper=True) == (
        BAD + "'teardown' cannot be wrapped: there everybody has a turn, whatever others do"
    )
    assert wrapping("setup", wrapper=True) == BAD + "'setup' cannot be wrapped: plugins are set up one after another"
    assert wrapping("step", lambda self, loop: None, wrapper=True) == (
        BAD + "'step' is a wrapper and must yield once, where the others are called"
    )


def test_what_would_never_run_is_refused():
    def generator(self, loop):
        yield

    async def coroutine(self, loop):
        pass

    def unmarked(self, loop):
        pass

    assert hook_refusal(of_hooks(after_step=hookimpl(generator))).startswith(
        BAD + "'after_step' is a generator and would never run"
    )
    assert hook_refusal(of_hooks(step=hookimpl(coroutine))).startswith(
        BAD + "'step' is a coroutine and would never run"
    )
    text = "'after_step' is not marked and would never be called: write @hookimpl above it"
    assert hook_refusal(of_hooks(after_step=unmarked)) == BAD + text
    marked = make("marked", after_step=hookimpl(lambda self, loop: None))
    overriding = type("Bad", (marked,), {"name": "bad", "__module__": __name__, "after_step": unmarked})
    assert hook_refusal(overriding()) == BAD + text


def test_a_generator_may_answer_where_what_it_gives_is_read_once():
    def batches(self, loop):
        yield 1, True

    def _step(self, size):
        return size

    manager = Manager([of_hooks(read_batches=hookimpl(batches), _step=_step)], Operations(), Hooks)
    assert manager.doubts == []
    assert list(manager.relay().read_batches(loop=None)) == [(1, True)]


def answering(name, **attributes):
    return of_hooks(name, hold_step=hookimpl(lambda self: True), **attributes)


def test_two_that_answer_one_operation_must_say_who_is_first():
    text = (
        "plugins 'a' and 'b' both answer 'hold_step' and neither says which is asked first: "
        "leave one out, or give one of them before or after the other"
    )
    assert hook_refusal(answering("a"), answering("b")) == text
    Manager([answering("a", before=("kind",)), answering("b", tags=("kind",))], Operations(), Hooks)
    Manager([answering("a"), answering("b", after=("a",))], Operations(), Hooks)

    def surround(self):
        return (yield)

    Manager([of_hooks("around", hold_step=hookimpl(surround, wrapper=True)), answering("a")], Operations(), Hooks)
    twin = answering("a")
    twin.key = "a2"
    Manager([answering("a"), twin], Operations(), Hooks)


class Brought:
    @hookspec
    def brewed(self, cup: int) -> int: ...


def test_plugins_bring_hooks_that_others_implement():
    brewer = make("brewer", hookspecs=(Brought,))
    drinker = of_hooks("drinker", brewed=hookimpl(lambda self, cup: cup + 1))
    manager = Manager([brewer(), drinker], Operations(), Hooks)
    assert manager.relay().brewed(cup=1) == [2]
    assert manager.hook_names[-1] == "brewed"
    assert hook_refusal(drinker) == f"plugin 'drinker' ({__name__}): hook 'brewed' does not exist."
    Manager([of_hooks("shy", brewed=hookimpl(lambda self, cup: cup, optionalhook=True))], Operations(), Hooks)

    class Sugared:
        @hookspec
        def brewed(self, sugar: int) -> int: ...

    refused = f"plugin 'drinker' ({__name__}): hook 'brewed' has no argument 'cup'; it has sugar"
    assert hook_refusal(make("sweet", hookspecs=(Sugared,))(), drinker) == refused  # which the other accepts still

    class Clashing:
        @hookspec
        def step(self) -> None: ...

    assert hook_refusal(make("bad", hookspecs=(Clashing,))()).startswith(
        "plugin 'bad' brings hooks that cannot be added: Hook 'step' is already registered within namespace"
    )


@pytest.mark.parametrize("name", ["conclude", "rebuild", "leave"])
def test_a_hook_cannot_take_the_place_of_what_the_relay_does(name):
    def spec(self, cup: int) -> int: ...

    specs = type("Specs", (), {name: hookspec(spec)})
    assert hook_refusal(make("bad", hookspecs=(specs,))()) == (
        f"a plugin brings a hook {name!r}, which the relay of hooks has for itself: rename it"
    )


def test_explain_says_who_is_called_in_which_order_and_why():
    first = of_hooks("first", before_step=hookimpl(lambda self: None), teardown=hookimpl(lambda self: None))
    second = of_hooks("second", before_step=hookimpl(lambda self: None), after=("first",))
    third = of_hooks("third", before_step=hookimpl(lambda self: None), teardown=hookimpl(lambda self: None))
    around = of_hooks("around", step=hookimpl(lambda self: (yield), wrapper=True))
    manager = Manager([around, first, second, third], Operations(), Hooks)
    assert manager.explain().splitlines() == [
        "before_step",
        "  1. first",
        "  2. second  [second says after='first']",
        "  3. third  [by name]",
        "step",
        "  1. around around the rest",
        "  2. the loop's own answer",
        "teardown (in reverse)",
        "  1. third",
        "  2. first  [by name]",
    ]
    assert Manager([], Operations(), Hooks).explain() == ("no plugin is live: the loop's own answers are all there is")


def test_explain_names_the_absent_plugin_that_a_place_comes_from():
    look = of_hooks("a_look", before_step=hookimpl(lambda self: None), after=("clip",))
    amp = of_hooks("zz", before_step=hookimpl(lambda self: None), group="scaling")
    clip = make("clip", after=("scaling",))
    live = Selection(installed(clip), [look, amp], {}).live
    assert Manager(live, Operations(), Hooks, [clip]).explain().splitlines() == [
        "before_step",
        "  1. zz",
        "  2. a_look  [a_look says after='clip', clip says after='scaling'; not live: clip]",
    ]


def test_listed_plugins_that_another_replaces_have_a_say_in_the_order_too():
    first, last = make("zz"), make("a", after=("mid",), replaces=("mid",))
    assert live(listed=[make("mid", after=("zz",)), last, first]) == ["zz", "a"]


def test_explain_of_a_trainer_counts_what_is_installed_and_says_what_is_ignored():
    look = of_hooks("a_look", after_epoch=hookimpl(lambda self: None), after=("early_stopping",))
    text = Trainer(["-*", look, "validation", "log_every"]).explain()
    assert (
        "a_look  [a_look says after='early_stopping', early_stopping says after='validation'; not live: early_" in text
    )
    assert "ignored" not in text
    odd = make("odd", after=("checkpoint",), before=("log_every",))
    text = Trainer(["-*", look, "validation", odd, make("over", replaces=("odd",))]).explain()
    assert (
        "\nplugin 'odd' is not live and its before and after are ignored, since they contradict the others': " in text
    )
    assert "odd runs before log_every: odd says before='log_every'" in text


def ends(self):
    yield
    print("at the end")


def begins(self):
    print("at the beginning")
    yield


def test_explain_lists_the_parts_of_a_wrapper_where_they_are_called(capsys):
    plain = of_hooks("plain", before_step=hookimpl(lambda self: print("plain")), before=("around",))
    around = of_hooks("around", before_step=hookimpl(ends, wrapper=True))
    manager = Manager([plain, around], Operations(), Hooks)
    assert manager.explain().splitlines() == [
        "before_step",
        "  1. around around the rest",
        "  2. plain",
        "  3. around after its yield  [plain says before='around']",
    ]
    manager.relay().before_step(loop=None)
    assert capsys.readouterr().out.split("\n") == ["plain", "at the end", ""]


def test_explain_says_where_a_place_is_not_kept_that_another_hook_keeps():
    both = {"after_step": hookimpl(lambda self: None)}
    plain = of_hooks("plain", before_step=hookimpl(lambda self: None), before=("around",), **both)
    around = of_hooks("around", before_step=hookimpl(begins, wrapper=True), **both)
    early = of_hooks("zz", before_step=hookimpl(lambda self: None, tryfirst=True), after=("plain",), **both)
    assert Manager([plain, around, early], Operations(), Hooks).explain().splitlines()[:5] == [
        "before_step",
        "  1. around around the rest",
        "  2. zz",
        "  3. plain  [not here: plain says before='around', but around is a wrapper and does nothing after its yield; "
        "not here: zz says after='plain', but zz says tryfirst=True]",
        "after_step",
    ]


def of_one(kind, **places):
    """A plugin of the name ``kind`` whose before_step is of that kind, and says ``places``."""
    hooks = {
        "plain": hookimpl(lambda self: None),
        "begins": hookimpl(begins, wrapper=True),
        "ends": hookimpl(ends, wrapper=True),
        "first": hookimpl(lambda self: None, tryfirst=True),
    }
    return of_hooks(kind, before_step=hooks[kind], **places)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            "plain",
            "begins",
            "'before_step' of 'begins' is a wrapper, which begins before whatever is none, and does nothing",
        ),
        (
            "ends",
            "plain",
            "'before_step' of 'ends' is a wrapper, which ends after whatever is none, and does nothing before",
        ),
        ("plain", "first", "'before_step' of 'first' says tryfirst=True"),
        ("plain", "ends", None),
        ("begins", "plain", None),
        ("begins", "ends", None),
        ("first", "plain", None),
    ],
)
@pytest.mark.parametrize("says", ["before", "after"])
def test_a_place_that_no_hook_can_keep_is_refused(one, other, said, says):
    plugins = (
        [of_one(one, before=(other,)), of_one(other)]
        if says == "before"
        else [of_one(one), of_one(other, after=(one,))]
    )
    if said is None:
        assert len(Trainer(["-*", *plugins]).plugins) == 2
        return
    head = f"plugin {one!r} (tests.core.test_manager) is declared to come before plugin {other!r} (tests.core.test_manager), "
    with pytest.raises(PluginError, match=f"^{re.escape(head)}and that holds in no hook: {re.escape(said)}"):
        Trainer(["-*", *plugins])
    with pytest.raises(PluginError, match="holds in no hook"):
        Manager(plugins[::-1], Operations(), Hooks)  # however they are listed
