import json
import pickle

import pytest
import torch

from lightloop import Plugin, PluginError, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop_plugins.trace.report import Calls, shares

BARE = ["-*", "run_dir", "duration"]


class Busy(Plugin):
    """Changes one thing in each hook."""

    name = "busy"

    @hookimpl
    def before_batch(self, loop):
        loop.batch = loop.batch + 0

    @hookimpl
    def after_forward(self, loop):
        loop.loss = loop.loss * 1

    @hookimpl
    def before_step(self, loop):
        torch._foreach_mul_(loop.gradients, 1.0)

    @hookimpl
    def after_step(self, loop):
        loop.optimizer.param_groups[0]["lr"] *= 0.5

    @hookimpl(wrapper=True)
    def step(self, loop):
        applied = yield
        with torch.no_grad():
            loop.module.w.add_(0.0)
        return applied

    @hookimpl
    def after_batch(self, loop):
        if loop.batch_idx == 1:
            loop.stop("enough")


def run(tmp_path, to=True, plugins=(Busy,), batches=3, module=None, **options):
    trainer = Trainer([*BARE, *plugins], trace=to, default_root_dir=tmp_path, **options)
    trainer.fit(module or Probe(), probe_batches(batches))
    return trainer


def changed(trainer, plugin):
    calls = trainer.plugin("trace").calls
    return {hook: (one.count, dict(one.changed)) for (hook, key), one in calls.items() if key == plugin}


def test_who_ran_how_often_and_what_it_changed(tmp_path, capsys):
    trainer = run(tmp_path)
    assert changed(trainer, "busy") == {
        "before_batch": (2, {"batch": 2}),
        "after_forward": (2, {"loss": 2}),
        "before_step": (2, {"gradients": 2}),
        "step": (4, {"parameters": 2}),  # before and after what it surrounds
        "after_step": (2, {"learning rate": 2}),
        "after_batch": (2, {"requests": 1}),
    }
    own = changed(trainer, "loop")
    assert own["backward"] == (2, {"gradients": 2})
    assert own["step"] == (2, {"parameters": 2})
    assert own["forward"] == (2, {})
    report = capsys.readouterr().err
    assert report.splitlines()[1].split() == ["plugin", "hook", "calls", "total", "s", "mean", "ms", "share", "changed"]
    assert "parameters 2x" in report
    assert (trainer.run_dir / "trace.txt").read_text().strip() == report.strip()


def test_training_is_the_same_and_the_relay_is_as_before(tmp_path):
    torch.manual_seed(0)
    plain, traced = TinyClassifier(), TinyClassifier()
    traced.load_state_dict(plain.state_dict())
    Trainer(BARE, gradient_clip_val=0.1).fit(plain, classification_batches())
    trainer = Trainer(BARE, gradient_clip_val=0.1, trace=True, default_root_dir=tmp_path)
    trainer.fit(traced, classification_batches())
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), traced.parameters(), strict=True))
    assert trainer.loop.hook._watch is None
    pickle.loads(pickle.dumps(trainer))


@pytest.mark.parametrize("named", [True, False])
def test_the_trace_is_one_that_a_viewer_reads(tmp_path, named):
    path = tmp_path / "own.json"
    trainer = run(tmp_path, to=path if named else True)
    events = json.loads((path if named else trainer.run_dir / "trace.json").read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"busy", "loop", "duration"} <= set(rows.values())
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["args"]["changed"] for event in spans if (event["name"], event["cat"]) == ("after_step", "busy")] == [
        "learning rate"
    ] * 2
    assert all(rows[event["tid"]] == event["cat"] and event["dur"] >= 0 for event in spans)
    assert [event["ts"] + event["dur"] for event in spans] == sorted(event["ts"] + event["dur"] for event in spans)


def test_the_shares_of_plugins_add_up():
    calls = {("a", "x"): Calls(1, 1.0), ("b", "x"): Calls(1, 2.0), ("a", "y"): Calls(2, 5.0)}
    assert shares(calls, 10.0) == {"y": 0.5, "x": 0.3}


@pytest.mark.parametrize("where", ["forward", "wrapper", "wrapper before"])
def test_an_error_passes_and_the_table_comes_all_the_same(tmp_path, where, capsys):
    class Fails(Plugin):
        name = "fails"

        @hookimpl(wrapper=True)
        def forward(self, loop):
            if where == "wrapper before":
                raise RuntimeError("no")
            output = yield
            if where == "wrapper":
                raise RuntimeError("no")
            return output

    class Net(Probe):
        def training_step(self, batch):
            if where == "forward":
                raise RuntimeError("no")
            return super().training_step(batch)

    with pytest.raises(RuntimeError, match="no") as info:
        run(tmp_path, plugins=[Fails], module=Net())
    assert info.value.__notes__[-1] == "at epoch 0, batch 0"
    assert "forward" in capsys.readouterr().err


def test_it_is_no_profiler():
    with pytest.raises(PluginError, match="'trace' and 'profiler' cannot both be live"):
        Trainer(trace=True, profiler=True)


def test_off_is_absent():
    assert Trainer(trace=False).plugin("trace") is None
