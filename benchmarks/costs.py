"""What else Lightloop costs: to import, to begin, for each plugin that does nothing, over a long run, traced, and to save.

    python benchmarks/costs.py [--quick] [--json FILE]

CPU time, on one thread. The times are of this machine; what can be compared with another's is the ratio beside each.
Rounds are interleaved, what is compared is compared within a round, and what counts is the median.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from loop import Net, Timed, make_data

from lightloop import Plugin, Trainer, hookimpl

IMPORTS = """
import time
begin = time.process_time()
import torch
there = time.process_time()
import lightloop
lightloop.toolkit.discover()
print(there - begin, time.process_time() - there)
"""
FIRST_STEP = """
import sys, time, torch
sys.path.insert(0, {folder!r})
import loop
torch.set_num_threads(1)
data = loop.make_data(1)
begin = time.process_time()
loop.{train}("bare", data)
print(time.process_time() - begin)
"""


class Idle(Plugin):
    """Has nothing to do in a batch."""

    name = "idle"

    @hookimpl
    def before_fit(self):
        pass


class Listens(Plugin):
    """Hears of each batch and does nothing."""

    name = "listens"

    @hookimpl
    def after_batch(self):
        pass


class Surrounds(Plugin):
    """Is around each step and does nothing."""

    name = "surrounds"

    @hookimpl(wrapper=True)
    def step(self):
        return (yield)


@contextlib.contextmanager
def quietly():
    """Drop the tables that some plugins print."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def in_new_process(times, *programs):
    """Of each of ``programs`` the medians of the numbers that it prints, with all bytecode in place."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = [[] for _ in programs]
    for number in range(times + 1):  # the first one writes the bytecode
        for numbers, program in zip(found, programs, strict=True):
            asked = [sys.executable, "-c", program]
            run = subprocess.run(asked, capture_output=True, text=True, check=True, env=environ)
            if number:
                numbers.append([float(each) for each in run.stdout.splitlines()[-1].split()])
    return [[statistics.median(each) for each in zip(*numbers, strict=True)] for numbers in found]


def several(kind):
    plugins = [kind() for _ in range(20)]
    for number, plugin in enumerate(plugins):
        plugin.key = f"{kind.name}{number}"
    return plugins


def per_batch(data, rounds, *variants):
    """Microseconds per batch of each of ``variants``, which are plugins and options of bare runs, round by round."""
    found = [[] for _ in variants]
    for _ in range(rounds + 1):
        for times, (plugins, options) in zip(found, variants, strict=True):
            timed = Timed(data)
            with tempfile.TemporaryDirectory() as folder, quietly():
                Trainer(["-*", *plugins], default_root_dir=folder, **options).fit(Net("bare"), timed)
            times.append(timed.microseconds)
    return [times[1:] for times in found]  # the first one warms up


def median_of(times, but=None, by=1):
    """The median of ``times``, less those ``but`` of the same round, divided ``by`` how many it is."""
    return statistics.median(time - less for time, less in zip(times, but or [0] * len(times), strict=True)) / by


SPAN = 100


class Watch(Plugin):
    """Notes time and memory every 100 batches."""

    name = "watch"

    def validate(self):
        self.times, self.memory = [], []

    @hookimpl
    def after_batch(self, loop):
        if loop.total_batches % SPAN == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.memory.append(pages * resource.getpagesize() / 2**20)
            self.times.append(time.process_time())


def long_run(steps):
    """Microseconds per step in the second tenth of so many ``steps``, memory in MiB after 1,000, and both at the end.

    Live is what a full run has. Of a tenth, the fastest hundred steps count, because machines are shared.
    """
    watch = Watch()
    options = {
        "gradient_clip_val": 1.0,
        "track_grad_norm": 2,
        "terminate_on_nan": True,
        "max_epochs": -1,
        "max_steps": steps,
    }
    with quietly():
        plugins = ["-*", "log_every", "running_loss", "throughput", watch]
        Trainer(plugins, **options).fit(Net("full"), make_data(500))
    spans = [(end - begin) / SPAN * 1e6 for begin, end in pairwise(watch.times)]
    tenth = len(spans) // 10
    return min(spans[tenth : 2 * tenth]), watch.memory[1000 // SPAN], min(spans[-tenth:]), watch.memory[-1]


def share_of_saving(batches):
    """The part of a run's time that its checkpoints take, one every 500 batches."""
    with tempfile.TemporaryDirectory() as folder, quietly():
        trainer = Trainer(
            ["-*", "checkpoint", "run_dir", "lr_schedule"],
            default_root_dir=folder,
            save_every="500 batches",
            profiler=True,
        )
        begin = time.perf_counter()
        trainer.fit(Net("bare"), make_data(batches))
        spent = time.perf_counter() - begin
    (profiler,) = (plugin for plugin in trainer.plugins if plugin.name == "profiler")
    return sum(seconds for (_, plugin), (_, seconds) in profiler.times.items() if plugin == "checkpoint") / spent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and a long run of 5,000 steps")
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, rounds, steps = make_data(1000), 3 if arguments.quick else 9, 5_000 if arguments.quick else 50_000
    bare, idle, listening, surrounding, traced = per_batch(
        data, rounds,
        ((), {}), (several(Idle), {}), (several(Listens), {}), (several(Surrounds), {}), (["run_dir"], {"trace": True}),
    )  # fmt: skip
    early, early_memory, late, memory = long_run(steps)
    first_step = FIRST_STEP.format(folder=str(Path(__file__).parent), train="{train}")
    (torch_import, own_import), (first,), (plain_first,) = in_new_process(
        rounds, IMPORTS, *(first_step.format(train=train) for train in ("lightloop", "plain"))
    )
    figures = {
        "import lightloop and find all plugins, s": own_import,
        "the same, × import torch": own_import / torch_import,
        "from nothing to the end of the first step, s": first,
        "the same, × the plain loop": first / plain_first,
        "a bare batch, µs": median_of(bare),
        "each of 20 idle plugins, µs a batch": median_of(idle, bare, 20),
        "each of 20 plugins that hear of each batch, µs a batch": median_of(listening, bare, 20),
        "each of 20 plugins around each step, µs a batch": median_of(surrounding, bare, 20),
        "a bare batch with trace=True, µs": median_of(traced),
        f"a step of a full run, in the second tenth of {steps:,}, µs": early,
        "a step of it in the last tenth, µs": late,
        "memory after 1,000 of its steps, MiB": early_memory,
        "memory at its end, MiB": memory,
        "checkpoints every 500 of 2,000 batches, % of the time": 100 * share_of_saving(2000),
    }
    print("| | |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {value:.3g} |" if abs(value) < 100 else f"| {name} | {value:.0f} |")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
