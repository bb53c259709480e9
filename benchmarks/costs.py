"""What else Lightloop costs: to import, to begin, for each plugin that does nothing, over a long run, traced, and to save.

    python benchmarks/costs.py [--quick] [--json FILE]

CPU time, on one thread. The times are of this machine; what can be compared with another's is the ratio beside each.
"""

import argparse
import contextlib
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from loop import Net, Timed, make_data

from lightloop import Plugin, Trainer, hookimpl

IMPORTS = """
import time, torch
begin = time.process_time()
import lightloop
lightloop.discover()
print(time.process_time() - begin)
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


@contextlib.contextmanager
def quietly():
    """Drop the tables that some plugins print."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def in_new_process(program, times):
    """The median of what ``program`` prints."""
    runs = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(times)
    )
    return statistics.median(float(run.stdout.split()[-1]) for run in runs)


def several(kind):
    plugins = [kind() for _ in range(20)]
    for number, plugin in enumerate(plugins):
        plugin.key = f"{kind.name}{number}"
    return plugins


def per_batch(data, rounds, *variants):
    """Microseconds per batch of each of ``variants``, which are plugins and options of bare runs, in interleaved rounds."""
    found = [[] for _ in variants]
    for _ in range(rounds):
        for times, (plugins, options) in zip(found, variants, strict=True):
            timed = Timed(data)
            with tempfile.TemporaryDirectory() as folder, quietly():
                Trainer(["-*", *plugins], default_root_dir=folder, **options).fit(Net("bare"), timed)
            times.append(timed.seconds / (len(data) - 101) * 1e6)
    return [statistics.median(times) for times in found]


class Watch(Plugin):
    """Notes time and memory at some batches."""

    name = "watch"

    def check(self):
        self.marks, self.seen = (), []

    @hookimpl
    def after_batch(self, loop):
        if loop.total_batches in self.marks:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.seen.append((loop.total_batches, pages * resource.getpagesize() / 2**20))


def long_run(steps):
    """Resident memory, in MiB, after the first 1,000 of ``steps`` steps and at the end, with what a full run has live."""
    watch = Watch()
    watch.marks = (1000, steps - 1)
    options = {
        "gradient_clip_val": 1.0,
        "track_grad_norm": 2,
        "terminate_on_nan": True,
        "max_epochs": -1,
        "max_steps": steps,
    }
    Trainer(["-*", "log_every", "running_loss", "throughput", watch], **options).fit(Net("full"), make_data(500))
    return watch.seen


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
    bare, idle, listening, traced = per_batch(
        data, rounds,
        ((), {}), (several(Idle), {}), (several(Listens), {}), (["run_dir"], {"trace": True}),
    )  # fmt: skip
    first, last = long_run(steps)
    folder = str(Path(__file__).parent)
    figures = {
        "import, s": in_new_process(IMPORTS, rounds),
        "first step, s": in_new_process(FIRST_STEP.format(folder=folder, train="lightloop"), rounds),
        "first step of the plain loop, s": in_new_process(FIRST_STEP.format(folder=folder, train="plain"), rounds),
        "a bare batch, µs": bare,
        "each of 20 idle plugins, µs a batch": (idle - bare) / 20,
        "each of 20 plugins that hear of each batch, µs a batch": (listening - bare) / 20,
        "the same batch with trace=True, µs": traced,
        f"memory after 1,000 of {steps:,} steps, MiB": first[1],
        f"memory after {steps:,} steps, MiB": last[1],
    }
    figures["of 2,000 batches' time, checkpoints every 500 take, %"] = 100 * share_of_saving(2000)
    print("| | |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {value:.3g} |" if value < 100 else f"| {name} | {value:.0f} |")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
