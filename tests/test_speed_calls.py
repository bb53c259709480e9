"""What the loop costs, in what does not depend on the machine: calls of functions, imports, and objects that are kept."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches, count_syncs
from lightloop.testing.ranks import run_ranks, values_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CASES = ("bare", "standard", "full")
HEAVY = (
    "fsspec",
    "horovod",
    "jsonargparse",
    "mlflow",
    "safetensors",
    "tensorboardX",
    "torch_xla",
    "tqdm",
    "wandb",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
)


@pytest.fixture(scope="module")
def compare():
    """benchmarks/compare.py, whose neighbours import one another by their bare names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("compare")
        for name in ("compare", "loop"):
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def benchmark(compare):
    """The plain loop and Lightloop as benchmarks/loop.py has them."""
    return sys.modules["loop"]


@pytest.mark.parametrize("case", CASES)
def test_a_batch_makes_no_more_calls_than_in_the_loop_that_you_would_have_written(benchmark, case):
    data = benchmark.make_data(400)
    assert benchmark.count_calls(benchmark.lightloop, case, data) <= benchmark.count_calls(benchmark.plain, case, data)


@pytest.mark.parametrize("case", CASES)
def test_it_ends_with_the_very_same_weights(benchmark, case):
    data = benchmark.make_data(80)
    plain, steps = benchmark.plain(case, data)
    ours, our_steps = benchmark.lightloop(case, data)
    assert our_steps == steps
    for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(one, other)


def trained(compare, train, data):
    net, steps = train("standard", data)
    return steps, compare.flat(net.parameters())


def test_what_has_not_trained_the_same_is_not_compared(compare, benchmark):
    data, others = benchmark.make_data(80), benchmark.make_data(80, seed=1)
    steps, weights = trained(compare, benchmark.plain, data)
    compare.check_same("standard", "lightloop", *trained(compare, benchmark.lightloop, data), steps, weights)
    with pytest.raises(AssertionError, match="standard: ignite made 19 steps, and the plain loop 20"):
        compare.check_same("standard", "ignite", *trained(compare, benchmark.plain, data[:76]), steps, weights)
    with pytest.raises(AssertionError, match=r"standard: the weights of ignite are .* of their way from those"):
        compare.check_same("standard", "ignite", *trained(compare, benchmark.plain, others), steps, weights)
    nearly = weights.clone()
    nearly[0] = torch.nextafter(nearly[0], torch.tensor(1.0))
    compare.check_same("standard", "ignite", steps, nearly, steps, weights)
    with pytest.raises(AssertionError, match="the weights of lightloop"):
        compare.check_same("standard", "lightloop", steps, nearly, steps, weights)
    with pytest.raises(AssertionError, match="the weights of ignite are nan"):
        compare.check_same("standard", "ignite", steps, weights * float("nan"), steps, weights)


def calls_per_batch(*plugins, **options):
    """Calls of Python functions, by name, that a batch makes; of the library's files and of compiled hooks."""
    counts = []
    for batches in (5, 5, 15):  # the first run imports and compiles
        calls = {}

        def count(frame, event, _argument, calls=calls):
            code = frame.f_code
            if event == "call" and ("lightloop" in code.co_filename or code.co_filename.startswith("<")):
                calls[code.co_name] = calls.get(code.co_name, 0) + 1

        trainer, module, data = Trainer(["-*", *plugins], **options), TinyClassifier(), classification_batches(batches)
        sys.setprofile(count)
        try:
            trainer.fit(module, data)
        finally:
            sys.setprofile(None)
        counts.append(calls)
    _, few, many = counts
    return {name: (many[name] - few.get(name, 0)) / 10 for name in many if many[name] != few.get(name, 0)}


IDLE = {
    *("before_batch", "after_forward", "before_backward", "after_backward", "before_step", "after_step", "after_batch"),
    "between_batches",
}
"""The hooks of a batch that tell."""


def test_an_idle_hook_costs_one_call_and_calls_nothing():
    calls = calls_per_batch()
    assert {name: calls[name] for name in IDLE} == dict.fromkeys(IDLE, 1)
    assert set(calls) - IDLE == {
        *("move_batch", "split_batch", "select_optimizers", "hold_step"),  # the loop's own answers
        *("_up_to", "train_batch", "select", "run_forward", "forward", "<lambda>", "training_step"),
        *("log", "_open", "__init__"),  # for it logs its loss
        *("run_backward", "add", "backward", "differentiate"),
        *("close_window", "prepare_step", "find_gradients", "<listcomp>", "agree", "step", "conclude_step"),
        *("zero_grad", "clear"),
    } - ({"<listcomp>"} if sys.version_info >= (3, 12) else set())


def test_an_idle_plugin_costs_no_call():
    class Idle(Plugin):
        name = "idle"

        @hookimpl
        def before_fit(self):
            pass

        @hookimpl
        def after_epoch(self):
            pass

    class Leaves(Idle):
        name = "leaves"

        @hookimpl
        def before_fit(self, loop):
            loop.opt_out(self)

        @hookimpl
        def before_batch(self):
            raise AssertionError("it has left")

        @hookimpl(wrapper=True)
        def step(self):
            raise AssertionError("it has left")
            yield

    assert calls_per_batch(Idle(), Leaves()) == calls_per_batch()


def test_tracing_that_is_off_costs_nothing_and_is_off_again_after_a_run(tmp_path, monkeypatch, capsys):
    off = calls_per_batch("run_dir", trace=False, default_root_dir=tmp_path)
    traced = calls_per_batch("run_dir", trace=True, default_root_dir=tmp_path)
    assert traced["watched"] > off.get("watched", 0) == 0
    assert calls_per_batch("run_dir", default_root_dir=tmp_path) == off
    monkeypatch.setenv("LIGHTLOOP_WITHOUT", "trace,profiler")
    assert calls_per_batch("run_dir", default_root_dir=tmp_path) == off


def test_a_run_with_every_default_plugin_reads_nothing_in_a_batch(tmp_path, capsys):
    counts = []
    for batches in (10, 30):
        with count_syncs() as syncs:
            Trainer(default_root_dir=tmp_path, log_every_n_steps=1000).fit(
                TinyClassifier(), classification_batches(batches)
            )
        counts.append([sync for sync in syncs if sync.hook not in ("before_fit", "after_epoch", "after_fit")])
    few, many = ([str(sync) for sync in each] for each in counts)
    assert few == many


class Objects(Plugin):
    """Counts the objects that the collector knows, at two batches."""

    name = "objects"
    after = ("log_every", "progress", "throughput", "validation")

    def validate(self):
        self.counts = []

    @hookimpl
    def after_batch(self, loop):
        if loop.batch_idx in (300, 900):
            gc.collect()
            self.counts.append(sum(type(each) is not tuple for each in gc.get_objects()))


def test_memory_is_flat(tmp_path, capsys):
    objects = Objects()
    trainer = Trainer([objects, "running_loss", "throughput"], default_root_dir=tmp_path, track_grad_norm=2)
    trainer.fit(TinyClassifier(), classification_batches(1000))
    at_300, at_900 = objects.counts
    assert at_900 - at_300 < 100, objects.counts  # one object in six batches would be as many


class Marks(Plugin):
    """Leaves a mark in the profile after each batch."""

    name = "marks"

    @hookimpl
    def after_batch(self):
        with record_function("after batch"):
            pass


def reductions(batches, accumulate):
    """How often the gradients of all ranks were brought together, batch by batch."""
    module = TinyClassifier()
    size = sum(parameter.numel() for parameter in module.parameters())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        Trainer(["-*", "ddp", Marks], accumulate_grad_batches=accumulate).fit(module, classification_batches(batches))
    counts = [0]
    for event in sorted(profiler.events(), key=lambda event: event.time_range.start):
        counts[-1] += event.name == "gloo:all_reduce" and event.input_shapes == [[size]]
        counts += [0] * (event.name == "after batch")
    return counts


@pytest.mark.processes
def test_two_processes_reduce_once_in_a_window_and_not_in_the_batches_that_are_held():
    assert values_of(run_ranks(reductions, 2, 10, 4)) == [[0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0]] * 2
    assert values_of(run_ranks(reductions, 2, 3, 1)) == [[1, 1, 1, 0]] * 2


@pytest.mark.processes
def test_nothing_heavy_is_imported_but_where_it_is_used():
    program = (
        "import sys, torch\nbefore = set(sys.modules)\nfrom lightloop import Trainer\n"
        "from lightloop.testing import TinyClassifier, classification_batches\n"
        "trainer = Trainer(['-*'], accumulate_grad_batches=2, gradient_clip_val=1.0)\n"
        f"heavy = {HEAVY!r}\n"
        "print([name for name in heavy if name in set(sys.modules) - before])\n"
        "trainer.validate(TinyClassifier(), classification_batches(4))\n"  # a fit would have torch import its compiler
        "print([name for name in heavy if name in set(sys.modules) - before])\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "[]"]


@pytest.mark.processes
def test_the_collector_does_not_go_through_all_of_torch_while_plugins_are_imported():
    program = (
        "import gc, torch, lightloop\n"
        "before = gc.get_stats()[2]['collections']\n"
        "found = lightloop.toolkit.discover()\n"
        "assert len(found) > 50\n"
        "print(gc.get_stats()[2]['collections'] - before, gc.get_freeze_count(), gc.isenabled())\n"
        "gc.freeze()\n"  # what a program has set aside itself stays there
        "lightloop.toolkit.discover()\n"
        "print(gc.get_freeze_count() > 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["0 0 True", "True"]
