"""What a plugin declares of itself: versions, ranks, what its failure does, hooks of its own; and where plugins are named."""

import os
import subprocess
import sys

import pytest

from lightloop import Plugin, PluginError, Trainer, hookimpl, hookspec
from lightloop.host.listing import from_environment
from lightloop.host.selection import Selection
from lightloop.testing import Probe, probe_batches
from lightloop.toolkit import discover

# ---------------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("versions", [None, ">=0.1", ">=0.1.0,<2", "==0.1.*"])
def test_a_plugin_for_this_version_is_taken(versions):
    class Mine(Plugin):
        name = "mine"
        works_with = versions

    assert Trainer(["-*", Mine]).plugins[0].name == "mine"


@pytest.mark.parametrize("make", [lambda kind: kind, lambda kind: kind()])
def test_a_plugin_for_another_version_is_refused(make):
    class Mine(Plugin):
        name = "mine"
        works_with = ">=7"

    with pytest.raises(PluginError) as info:
        Trainer(["-*", make(Mine)])
    assert str(info.value) == (
        f"plugin 'mine' ({__name__}) works with lightloop >=7, and this is 0.1.0: install another version of one of them"
    )


def test_what_is_no_range_of_versions_is_told():
    class Mine(Plugin):
        name = "mine"
        works_with = "7 or so"

    with pytest.raises(PluginError) as info:
        Trainer(["-*", Mine])
    assert str(info.value) == (
        f"plugin 'mine' ({__name__}) has works_with = '7 or so', which is no specifier of PEP 440, such as '>=0.1,<2'"
    )


# ------------------------------------------------------------------------------------------------------------- ranks


def calls_on(rank, **declared):
    """The hooks of a plugin that is in a run on rank ``rank`` of two."""
    calls = []

    class Placed(Plugin):
        name = "placed"
        group = "strategy"

        @hookimpl
        def setup(self, loop):
            loop.world.rank = rank  # of one: there is nobody to agree with

    class Mine(Plugin):
        name = "mine"
        locals().update(declared)

        @hookimpl
        def setup(self, loop):
            calls.append("setup")

        @hookimpl
        def after_epoch(self, loop):
            calls.append("after_epoch")

        @hookimpl
        def after_evaluation(self, loop):
            calls.append("after_evaluation")

        @hookimpl
        def teardown(self, loop):
            calls.append("teardown")

    class Net(Probe):
        def validation_step(self, batch):
            pass

    Trainer(["-*", Placed, Mine, "validation"], num_sanity_val_steps=0).fit(Net(), probe_batches(1), probe_batches(1))
    return calls


ALL = ["setup", "after_epoch", "after_evaluation", "teardown"]


@pytest.mark.parametrize(
    ("rank", "ranks", "calls"),
    [
        (0, "main", ALL),
        (1, "main", []),
        (1, "all", ALL),
        (0, {"after_epoch": "main", "teardown": "main"}, ALL),
        (1, {"after_epoch": "main", "teardown": "main"}, ["setup", "after_evaluation"]),
    ],
)
def test_hooks_run_on_the_ranks_that_they_are_for(rank, ranks, calls):
    assert calls_on(rank, ranks=ranks) == calls


# --------------------------------------------------------------------------------------------------- what failures do


def failing(where, wrapped=None, **declared):
    class Fails(Plugin):
        name = "fails"
        on_failure = "disable"
        locals().update(declared)

        def validate(self):
            self.calls = []

        @hookimpl
        def setup(self, loop):
            self.at("setup")

        @hookimpl
        def after_batch(self, loop):
            self.at("after_batch")

        @hookimpl
        def teardown(self, loop):
            self.at("teardown")

        @hookimpl
        def hold_step(self, loop):
            self.at("hold_step")

        @hookimpl(wrapper=True)
        def forward(self, loop):
            self.at("forward")
            output = yield
            self.at("forward later")
            return output

        def at(self, hook):
            self.calls.append(hook)
            if hook == where:
                raise ValueError(f"no {hook}")

    return Fails()


@pytest.mark.parametrize(
    ("where", "calls"),
    [
        ("setup", ["setup", "teardown"]),
        ("hold_step", ["setup", "hold_step", "teardown"]),
        ("forward", ["setup", "hold_step", "forward", "teardown"]),
        ("forward later", ["setup", "hold_step", "forward", "forward later", "teardown"]),
        ("after_batch", ["setup", "hold_step", "forward", "forward later", "after_batch", "teardown"]),
        ("teardown", ["setup", *["hold_step", "forward", "forward later", "after_batch"] * 3, "teardown"]),
    ],
)
def test_a_plugin_that_may_fail_is_out_for_the_rest_of_the_run(where, calls):
    plugin, module = failing(where), Probe()
    with pytest.warns(UserWarning, match="out for the rest") as warned:
        result = Trainer(["-*", plugin]).fit(module, probe_batches(3))
    hook = where.split()[0]
    assert [str(w.message) for w in warned] == [
        f"plugin 'fails' ({__name__}) is out for the rest of the run; it failed in {hook}: ValueError: no {where}"
    ]
    assert plugin.calls == calls
    assert (result.status, result.global_step, module.w.item()) == ("finished", 3, -6.0)
    assert result.disabled == {"fails": f"{hook}: ValueError: no {where}"}


def test_it_is_back_in_the_next_run():
    plugin = failing("after_batch")
    trainer = Trainer(["-*", plugin])
    for _ in range(2):
        with pytest.warns(UserWarning, match="failed in after_batch"):
            trainer.fit(Probe(), probe_batches(1))
    assert plugin.calls.count("after_batch") == 2


def test_by_default_a_failure_stops_the_run():
    with pytest.raises(ValueError, match="no after_batch") as info:
        Trainer(["-*", failing("after_batch", on_failure="stop")]).fit(Probe(), probe_batches(1))
    assert info.value.__notes__[0] == f"in after_batch of plugin 'fails' ({__name__})"


def test_the_errors_of_others_pass_through_a_wrapper_that_may_fail():
    class Net(Probe):
        def training_step(self, batch):
            raise KeyError("mine")

    class Closes(Plugin):
        name = "closes"
        on_failure = "disable"

        @hookimpl(wrapper=True)
        def forward(self, loop):
            try:
                return (yield)
            finally:
                raise RuntimeError("while cleaning up")

    with pytest.warns(UserWarning, match="failed in forward: RuntimeError: while cleaning up"):
        with pytest.raises(KeyError, match="mine"):
            Trainer(["-*", Closes]).fit(Net(), probe_batches(1))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_failure_is_not_caught(error):
    class Exits(Plugin):
        name = "exits"
        on_failure = "disable"

        @hookimpl
        def after_batch(self, loop):
            raise error

    with pytest.raises(error):
        Trainer(["-*", Exits]).fit(Probe(), probe_batches(1))


# ------------------------------------------------------------------------------------------------------ hooks of one's own


class Tea:
    @hookspec
    def before_tea(self, loop, cups: int) -> None:
        """Tea is served."""

    @hookspec(firstresult=True)
    def sugar(self, loop):
        """How many lumps."""


class Host(Plugin):
    name = "host"
    hookspecs = (Tea,)

    @hookimpl
    def after_batch(self, loop):
        loop.hook.before_tea(loop=loop, cups=2)
        self.lumps = loop.hook.sugar(loop=loop)


def test_hooks_that_a_plugin_brings_are_implemented_by_others():
    events = []

    class Guest(Plugin):
        name = "guest"
        requires = ("host",)

        @hookimpl
        def before_tea(self, loop, cups):
            events.append(("guest", cups))

        @hookimpl
        def sugar(self, loop):
            return 3

    class Another(Plugin):
        name = "another"
        after = ("guest",)

        @hookimpl(optionalhook=True)
        def before_tea(self, loop):
            events.append("another")

    host = Host()
    trainer = Trainer(["-*", Another, Guest, host])
    trainer.fit(Probe(), probe_batches(1))
    assert (events, host.lumps) == ([("guest", 2), "another"], 3)
    assert "before_tea\n  1. guest\n  2. another  [another says after='guest']" in trainer.explain()
    Trainer(["-*", Another]).fit(Probe(), probe_batches(1))  # an optional hook needs nobody that brings it
    with pytest.raises(PluginError) as info:
        Trainer(["-*", Guest])
    assert (
        str(info.value) == "plugin 'guest' requires 'host', which is not live: nothing that is installed is called so"
    )


def test_their_arguments_are_checked_like_the_loops_own():
    class Guest(Plugin):
        name = "guest"

        @hookimpl
        def before_tea(self, loop, cup):
            pass

    with pytest.raises(PluginError) as info:
        Trainer(["-*", Guest, Host])
    assert str(info.value) == (
        f"plugin 'guest' ({__name__}): hook 'before_tea' has no argument 'cup'; it has loop, cups"
    )


# ---------------------------------------------------------------------------------------------- where plugins are named


def test_the_environment_speaks_the_same_language(monkeypatch):
    assert from_environment({"LIGHTLOOP_PLUGINS": " ema, -progress ,mod:Class,"}) == ["ema", "-progress", "mod:Class"]
    monkeypatch.setenv("LIGHTLOOP_PLUGINS", "-*,throughput,lightloop_plugins.toggle:Toggle")
    assert [plugin.name for plugin in Trainer().plugins] == ["throughput", "toggle"]
    monkeypatch.setenv("LIGHTLOOP_PLUGINS", "throughputt")
    with pytest.raises(PluginError) as info:
        Trainer()
    assert str(info.value) == (
        "there is no plugin 'throughputt'. Did you mean 'throughput' or 'outputs' or 'tbptt'? (LIGHTLOOP_PLUGINS lists "
        "'throughputt')"
    )


def test_what_the_program_has_set_up_stays():
    throughput = discover()["throughput"].plugin
    own = throughput(window=7)
    assert Selection(discover(), ["-*", own], {}, ["throughput"]).live == [own]


LOCAL = """
from lightloop import Plugin, hookimpl, option

class Base(Plugin):
    def said(self):
        return self.word

class Greet(Base):
    name = "greet"
    word: str = option("", "What is said.")

    @hookimpl
    def after_fit(self, loop):
        print("said", self.said())
"""
SCRIPT = """
import sys, pickle
from lightloop import Trainer
from lightloop.toolkit import discover
from lightloop.testing import Probe, probe_batches
print({name: (str(found), found.problem) for name, found in discover().items() if "lo" in name or "gr" in name})
trainer = Trainer(["-*"], **({"greet_word": "hello"} if len(sys.argv) < 2 else {}))
trainer.fit(Probe(), probe_batches(1))
assert pickle.loads(pickle.dumps(trainer)).loop is None
"""


def run_script(tmp_path, local, *arguments, **environ):
    (tmp_path / "lightloop_local.py").write_text(local)
    (tmp_path / "script.py").write_text(
        SCRIPT.replace('"lo" in name or "gr" in name', "found.distribution != 'lightloop'")
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.processes
def test_a_file_beside_the_program_has_plugins(tmp_path):
    code, said, errors = run_script(tmp_path, LOCAL)
    assert (code, said) == (0, ["{'greet': (\"'greet' of lightloop_local.py\", None)}", "said hello"]), errors


@pytest.mark.processes
def test_a_broken_file_stops_nothing(tmp_path):
    code, said, errors = run_script(tmp_path, "import nonexistent_thing", "without")
    problem = "cannot be imported: ModuleNotFoundError: No module named 'nonexistent_thing'"
    assert code == 0, errors
    assert said == [str({"lightloop_local": ("'lightloop_local' of lightloop_local.py", problem)})]
    assert errors.count("is left out; it cannot be imported") == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    "environ", [{"LIGHTLOOP_LOCAL": "0"}, {"LIGHTLOOP_WITHOUT": "lightloop_local"}, {"LIGHTLOOP_DISCOVER": "0"}]
)
def test_the_file_can_be_left_alone(tmp_path, environ):
    code, said, errors = run_script(tmp_path, "raise SystemExit('imported')", "without", **environ)
    assert (code, said, errors) == (0, ["{}"], "")


def test_a_local_plugin_with_an_installed_ones_name_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text("from lightloop import Plugin\nclass Clip(Plugin):\n    name = 'clip'\n")
    monkeypatch.setenv("LIGHTLOOP_LOCAL", str(path))
    with pytest.raises(PluginError) as info:
        Trainer()
    assert str(info.value) == (
        f"a plugin of {path} and one of lightloop (lightloop_plugins.clip:Clip) are both called 'clip'. "
        "Rename yours, or set LIGHTLOOP_WITHOUT=clip to run without both"
    )
    sys.modules.pop("lightloop_local")
