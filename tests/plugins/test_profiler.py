import json
import pickle
from contextlib import contextmanager

import pytest
import torch

from lightloop import Trainer
from lightloop.testing import Probe, probe_batches
from lightloop_plugins.profiler import SPANS

BARE = ["-*", "run_dir", "duration"]


def run(tmp_path, kind, batches=4, **options):
    trainer = Trainer(BARE, profiler=kind, default_root_dir=tmp_path, max_epochs=2, **options)
    trainer.fit(Probe(), probe_batches(batches))
    return trainer


def calls(trainer):
    return {key: value[0] for key, value in trainer.plugin("profiler").times.items() if value[0]}


@pytest.mark.parametrize("kind", [True, "simple"])
def test_the_calls_of_each_hook_and_plugin_are_counted(kind, tmp_path, capsys):
    trainer = run(tmp_path, kind, accumulate_grad_batches=2)
    counted = calls(trainer)
    assert counted["model_forward", "loop"] == counted["model_backward", "loop"] == 8
    assert counted["optimizer_step", "loop"] == 4
    assert counted["hold_step", "accumulate"] == 8
    assert counted["get_train_batch", "loop"] == 2 * (4 + 1)
    assert counted["epochs_remain", "duration"] == 3
    assert all(seconds >= 0 for _, seconds in trainer.plugin("profiler").times.values())
    report = capsys.readouterr().err
    assert report.splitlines()[2].split() == ["span", "plugin", "calls", "total", "s", "mean", "ms", "share"]
    assert (trainer.run_dir / "profile.txt").read_text().strip() == report.strip()
    pickle.loads(pickle.dumps(trainer))


def test_spans_keep_the_names_that_the_field_knows():
    assert set(SPANS.values()) == {
        "on_train_start", "on_epoch_start", "get_train_batch", "on_batch_start", "tbptt_split_batch", "model_forward",
        "model_backward", "on_after_backward", "optimizer_step", "training_step_end", "on_batch_end", "on_epoch_end",
        "on_train_end",
    }  # fmt: skip


def test_off_is_absent(tmp_path):
    trainer = Trainer(BARE, profiler=None)
    assert trainer.plugin("profiler") is None
    trainer = run(tmp_path, True)
    assert trainer.loop.hook.forward.__name__ != "<lambda>"
    assert trainer.loop.hook._watch is None


def test_training_is_the_same(tmp_path):
    assert run(tmp_path, True).loop.module.w.item() == -20.0


def test_advanced_adds_functions(tmp_path, capsys):
    run(tmp_path, "advanced")
    assert "(train_batch)" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler", "ignore::FutureWarning")
def test_pytorch_leaves_a_trace_with_the_spans(tmp_path):
    trainer = run(tmp_path, "pytorch", batches=6)
    trace = json.loads((trainer.run_dir / "trace.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("model_forward") == 3
    assert {"model_backward", "optimizer_step", "on_batch_end (profiler)"} <= set(names)
    pickle.loads(pickle.dumps(trainer))


def test_a_profiler_of_ones_own_is_driven(tmp_path):
    events = []

    class Own:
        def start(self):
            events.append("start")

        def step(self):
            events.append("step")

        def stop(self):
            events.append("stop")

    run(tmp_path, Own(), batches=2)
    assert events == ["start", "step", "step", "step", "step", "stop"]


def test_a_function_gives_the_context_of_each_span(tmp_path):
    open_spans, seen = [], []

    @contextmanager
    def span(name):
        open_spans.append(name)
        seen.append((name, len(open_spans)))
        yield
        assert open_spans.pop() == name

    run(tmp_path, span, batches=1)
    assert open_spans == []
    assert ("model_forward", 1) in seen
    assert ("epochs_remain (duration)", 1) in seen


def test_it_ends_with_an_error_too(tmp_path, capsys):
    class Failing(Probe):
        def training_step(self, batch):
            raise RuntimeError("no")

    for kind in ("advanced", torch.profiler.record_function):
        with pytest.raises(RuntimeError, match="no"):
            Trainer(BARE, profiler=kind, default_root_dir=tmp_path).fit(Failing(), probe_batches(1))
        assert "model_forward" in capsys.readouterr().err


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="profiler"):
        Trainer(profiler="quick")
