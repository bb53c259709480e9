"""What the loop costs, in what does not depend on the machine: calls of functions, imports, and objects that are kept."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches, count_syncs

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "loop.py"
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
def benchmark():
    """The plain loop and Lightloop as benchmarks/loop.py has them."""
    spec = importlib.util.spec_from_file_location("benchmarks_loop", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        *("with_is_last", "train_batch", "select", "run_forward", "forward", "<lambda>", "training_step"),
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
            loop.leave_out(self)

        @hookimpl
        def before_batch(self):
            raise AssertionError("it has left")

        @hookimpl(wrapper=True)
        def step(self):
            raise AssertionError("it has left")
            yield

    assert calls_per_batch(Idle(), Leaves()) == calls_per_batch()


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

    def check(self):
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
