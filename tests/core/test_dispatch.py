"""The compiled relay calls what pluggy would call, keeps the first error, and says whose it is."""

from __future__ import annotations

import contextlib
from typing import Any

import pluggy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightloop import Hooks, hookimpl, hookspec
from lightloop.toolkit import Relay


class Specs:
    @hookspec(firstresult=True)
    def first(self, x: int) -> int | None: ...

    @hookspec
    def tell(self, x: int) -> None: ...

    @hookspec
    def collect(self, x: int) -> int: ...


class Labelled:
    @property
    def label(self) -> str:
        return f"plugin {type(self).__name__!r} (here)"


def manager_of(*plugins: Any, specs: type = Specs) -> pluggy.PluginManager:
    manager = pluggy.PluginManager("lightloop")
    manager.add_hookspecs(specs)
    for index, plugin in reversed(list(enumerate(plugins))):
        manager.register(plugin, f"{type(plugin).__name__}{index}")
    return manager


# ------------------------------------------------------------------------------- the same as pluggy, whatever is there

PLAIN = st.sampled_from(["none", "value", "raise", "stop"])
WRAPPERS = st.sampled_from(
    ["pass", "change", "swallow", "raise before", "raise after", "raise from", "clean up", "none"]
)
IMPLS = st.lists(
    st.tuples(
        st.booleans(), PLAIN, WRAPPERS, st.booleans()
    ),  # is a wrapper, what a plain one does, a wrapper, tryfirst
    max_size=6,
)


def plugin_doing(index: int, hook: str, wraps: bool, plain: str, around: str, tryfirst: bool, events: list[Any]) -> Any:
    class Plugin(Labelled):
        pass

    def implement(self: Any, x: int) -> Any:
        events.append((index, x))
        if plain == "raise":
            raise ValueError(index)
        if plain == "stop":
            raise StopIteration(index)
        return index if plain == "value" and hook != "tell" else None

    def surround(self: Any, x: int) -> Any:
        events.append((index, "in"))
        if around == "raise before":
            raise KeyError(index)
        try:
            result = yield
        except BaseException as error:
            events.append((index, type(error).__name__))
            if around == "swallow":
                return -index
            if around == "raise from":
                raise RuntimeError(index) from error
            raise
        finally:
            events.append((index, "out"))
        if around == "raise after":
            raise OSError(index)
        return None if around == "none" else (-1 if around == "change" else result)

    function = surround if wraps else implement
    setattr(Plugin, hook, hookimpl(function, wrapper=wraps, tryfirst=tryfirst))
    return Plugin()


def outcome(call: Any) -> Any:
    try:
        result = call(x=7)
    except BaseException as error:
        return type(error), error.args, type(error.__cause__)
    return None if result == [] else result


@settings(max_examples=400, deadline=None)
@given(IMPLS, st.sampled_from(["first", "tell", "collect"]))
def test_calls_what_pluggy_calls(impls, hook):
    seen = []
    for caller in ("pluggy", "relay"):
        events: list[Any] = []
        manager = manager_of(*[plugin_doing(i, hook, *impl, events) for i, impl in enumerate(impls, start=1)])
        relay = Relay(manager) if caller == "relay" else manager.hook
        seen.append((outcome(getattr(relay, hook)), events))
    assert seen[0] == seen[1]


def test_earlier_is_called_earlier_and_lies_further_out():
    out = []

    class One:
        @hookimpl
        def tell(self):
            out.append("one")

    class Two:
        @hookimpl(wrapper=True)
        def tell(self):
            out.append("two in")
            yield
            out.append("two out")

    class Three:
        @hookimpl(wrapper=True)
        def tell(self):
            out.append("three in")
            yield
            out.append("three out")

    class Four:
        @hookimpl
        def tell(self, x):
            out.append(f"four {x}")

    assert Relay(manager_of(One(), Two(), Three(), Four())).tell(x=1) is None
    assert out == ["two in", "three in", "one", "four 1", "three out", "two out"]


def test_nobody_answers():
    relay = Relay(manager_of())
    assert (relay.first(x=1), relay.tell(x=1), relay.collect(x=1)) == (None, None, [])


def test_c77_arguments_go_by_name_and_none_may_be_missing():
    class One:
        @hookimpl
        def tell(self, x):
            return None

    relay = Relay(manager_of(One()))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        relay.tell()
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        relay.tell(x=1, y=2)


def test_a_plugin_that_comes_or_goes_is_called_after_rebuild():
    class One:
        @hookimpl
        def collect(self):
            return 1

    class Two:
        @hookimpl
        def collect(self):
            return 2

    one, two = One(), Two()
    manager = manager_of(one)
    relay = Relay(manager)
    assert relay.collect(x=0) == [1]
    manager.register(two)
    assert relay.collect(x=0) == [1]
    relay.rebuild()
    assert relay.collect(x=0) == [2, 1]
    manager.unregister(one)
    relay.rebuild()
    assert relay.collect(x=0) == [2]


def test_a_plugin_that_leaves_is_called_no_more_but_to_clean_up():
    out = []

    class One:
        @hookimpl
        def after_step(self):
            out.append("step")

        @hookimpl
        def teardown(self):
            out.append("teardown")

    one = One()
    relay = Relay(manager_of(one, specs=Hooks))
    relay.leave(one)
    relay.after_step(loop=None)
    relay.teardown(loop=None)
    assert out == ["teardown"]


def test_every_call_can_be_watched():
    out = []

    class One:
        @hookimpl
        def collect(self, x):
            return x

    def watch(hook, key, function):
        def watched(*arguments):
            out.append((hook, key))
            return function(*arguments)

        return watched

    relay = Relay(manager_of(One()), watch)
    assert relay.collect(x=3) == [3]
    assert out == [("collect", "One0")]
    relay.rebuild()
    assert relay.collect(x=3) == [3]
    assert out == [("collect", "One0")]


# ------------------------------------------------------------------------------------------------ errors, and whose


class Orig(Labelled):
    @hookimpl
    def first(self, x):
        raise ValueError("orig")


def caught(relay: Relay, kind: type[BaseException], hook: str = "first") -> BaseException:
    with pytest.raises(kind) as info:
        getattr(relay, hook)(x=1)
    return info.value


@pytest.mark.parametrize("hook", ["first", "tell", "collect"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_error_says_whose_it_is(hook, position):
    plugins = []
    for index in range(3):

        class Quiet(Labelled):
            pass

        class Loud(Labelled):
            pass

        def fail(self, x):
            raise ValueError("orig")

        kind = Loud if index == position else Quiet
        setattr(kind, hook, hookimpl(fail if kind is Loud else lambda self: None))
        plugins.append(kind())
    error = caught(Relay(manager_of(*plugins)), ValueError, hook)
    assert error.__notes__ == [f"in {hook} of plugin 'Loud' (here)"]


def test_a_wrapper_says_whose_error_it_is_before_and_after():
    class Before(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            raise KeyError("before")
            yield

    class After(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            yield
            raise KeyError("after")

    for plugin in (Before(), After()):
        error = caught(Relay(manager_of(plugin)), KeyError)
        assert error.__notes__ == [f"in first of plugin {type(plugin).__name__!r} (here)"]


def test_c37_the_first_error_stays_the_error_and_every_clean_up_runs():
    out = []

    class Outer(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            try:
                return (yield)
            finally:
                out.append("outer cleaned up")

    class Late(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            try:
                return (yield)
            finally:
                raise RuntimeError("late")

    error = caught(Relay(manager_of(Outer(), Late(), Orig())), ValueError)
    assert out == ["outer cleaned up"]
    assert error.args == ("orig",)
    assert error.__notes__ == [
        "in first of plugin 'Orig' (here)",
        "then also: RuntimeError: late (in first of plugin 'Late' (here))",
    ]


def test_the_cause_of_an_error_is_left_alone():
    class Caused(Labelled):
        @hookimpl
        def first(self):
            raise ValueError("orig") from KeyError("why")

    class Late(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            try:
                return (yield)
            finally:
                raise RuntimeError("late")

    error = caught(Relay(manager_of(Late(), Caused())), ValueError)
    assert repr(error.__cause__) == "KeyError('why')"


def test_a_wrapper_may_put_its_own_error_in_place_by_saying_from():
    class Translate(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            try:
                return (yield)
            except ValueError as error:
                raise TypeError("said better") from error

    error = caught(Relay(manager_of(Translate(), Orig())), TypeError)
    assert repr(error.__cause__) == "ValueError('orig')"


@pytest.mark.parametrize("wrappers", [1, 2])
def test_stop_iteration_goes_through_wrappers_as_itself(wrappers):
    class Through(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            return (yield)

    class Exhausted(Labelled):
        @hookimpl
        def first(self):
            return next(iter([]))

    error = caught(Relay(manager_of(*[Through() for _ in range(wrappers)], Exhausted())), StopIteration)
    assert error.__notes__ == ["in first of plugin 'Exhausted' (here)"]


def test_a_wrapper_must_yield_exactly_once():
    class Never(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            return 1
            yield

    class Twice(Labelled):
        @hookimpl(wrapper=True)
        def first(self):
            with contextlib.suppress(ValueError):
                yield
            yield

    text = "the wrapper of first in plugin '{}0' {}; it must yield exactly once"
    assert str(caught(Relay(manager_of(Never())), RuntimeError)) == text.format("Never", "did not yield")
    assert str(caught(Relay(manager_of(Twice())), RuntimeError)) == text.format("Twice", "yielded a second time")
    error = caught(Relay(manager_of(Twice(), Orig())), ValueError)
    assert error.__notes__[-1] == "then also: " + text.format("Twice", "yielded a second time")


def test_conclude_gives_everybody_a_turn_in_reverse_and_raises_at_the_end():
    out = []

    def plugin(name, fails):
        class Plugin(Labelled):
            @hookimpl
            def after_fit(self):
                out.append(f"after_fit {name}")

            @hookimpl
            def teardown(self):
                out.append(f"teardown {name}")
                if fails:
                    raise OSError(name)

        Plugin.__name__ = name
        return Plugin()

    plugins = [plugin("one", False), plugin("two", True), plugin("three", False)]
    relay = Relay(manager_of(*plugins, specs=Hooks))
    with pytest.raises(OSError, match="two") as info:
        relay.conclude("after_fit", "teardown", loop=None)
    assert info.value.__notes__ == ["in teardown of plugin 'two' (here)"]
    assert out == [f"{hook} {name}" for hook in ("after_fit", "teardown") for name in ("three", "two", "one")]

    out.clear()
    relay.conclude("teardown", among=plugins[:1], loop=None)
    assert out == ["teardown one"]

    error = ValueError("first")
    relay.conclude("teardown", error=error, loop=None)
    assert error.__notes__ == ["then also OSError: two (in teardown of plugin 'two' (here))"]

    with pytest.raises(BaseExceptionGroup) as several:
        Relay(manager_of(plugin("a", True), plugin("b", True), specs=Hooks)).conclude("teardown", loop=None)
    assert [str(error) for error in several.value.exceptions] == ["b", "a"]
    assert several.value.message == "2 plugins failed in teardown"


def test_begin_calls_in_order_and_notes_whose_turn_has_come():
    out = []

    def plugin(name):
        class Plugin(Labelled):
            @hookimpl
            def setup(self):
                out.append(name)
                if name == "two":
                    raise OSError(name)

        Plugin.__name__ = name
        return Plugin()

    plugins = [plugin("one"), object(), plugin("two"), plugin("three")]
    begun: list[object] = []
    with pytest.raises(OSError) as info:
        Relay(manager_of(*plugins, specs=Hooks)).begin(plugins, begun, lambda: True, loop=None)
    assert out == ["one", "two"]
    assert begun == plugins[:3]
    assert info.value.__notes__ == ["in setup of plugin 'two' (here)"]


@pytest.mark.parametrize("hook", ["first", "tell"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_goes_through_a_wrapper_that_catches_everything(kind, hook):
    class Catches(Labelled):
        def surround(self, x):
            try:
                return (yield)
            except BaseException:
                return 7

    class Ends(Labelled):
        def end(self, x):
            raise kind

    setattr(Catches, hook, hookimpl(Catches.surround, wrapper=True))
    setattr(Ends, hook, hookimpl(Ends.end))
    error = caught(Relay(manager_of(Catches(), Ends())), kind, hook)
    assert (
        f"the wrapper of {hook} in plugin 'Catches' (here) caught it; what ends the process goes on all the same"
        in (error.__notes__)
    )
