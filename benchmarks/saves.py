"""What a save costs, beside what it costs in another version of the library.

    python benchmarks/saves.py [--against PYTHON] [--sizes 1 30 300] [--rounds 10] [--saves 4] [--directory DIR]

PYTHON is the interpreter of an environment in which the other version is installed: that of a second worktree, say. In each
round the same run is made by the one and then by the other, in the next round the other way round; every batch is saved.
Measured is the time from the end of a batch to the moment at which training goes on, so all that the library does for a
save is in it: loggers are flushed, the state is taken, hashed, written and waited for, and what is old is removed.
The run of a process that comes first warms up. Shown are the medians of the time that passes and of that of the processor,
and the ratio of the two versions with the interval that holds it with a probability of 95 %, from ratios of the two runs of
one round (sign test): machines are shared, and a ratio of medians alone says little.

A directory in memory (/dev/shm) shows what the library itself takes; one on a disk, what waiting for the disk adds.
"""

import argparse
import json
import logging
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl

PARTS = 8
"""Of so many tensors the module is made; Adam has two more of each."""


class Net(Module):
    def __init__(self, megabytes):
        super().__init__()
        count = int(megabytes * 1e6 / 12 / PARTS)  # with Adam, three times four bytes are saved of each number
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(count)) for _ in range(PARTS))

    def training_step(self, batch):
        loss = sum((part - batch).square().mean() for part in self.parts)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Clock(Plugin):
    """Takes the time of what is done between batches: that which passes, and that of the processor."""

    name = "clock"
    before = ("checkpoint",)

    def validate(self):
        self.seconds = []

    @hookimpl(wrapper=True, tryfirst=True)
    def between_batches(self):
        began = now()
        try:
            return (yield)
        finally:
            self.seconds.append([end - begin for end, begin in zip(now(), began, strict=True)])


def now():
    return time.perf_counter(), time.process_time()


def save(megabytes, saves, directory):
    """Seconds of each save of a run."""
    clock = Clock()
    place = tempfile.mkdtemp(dir=directory)
    trainer = Trainer(
        ["-progress", "-model_summary", clock],
        max_steps=saves + 1,
        max_epochs=-1,
        save_every="1 batches",
        default_root_dir=place,
    )
    trainer.fit(Net(megabytes), [torch.tensor(float(number)) for number in range(saves + 1)])
    shutil.rmtree(place)
    return clock.seconds[1:]  # the first one finds nothing there, and removes nothing


def serve():
    """Make the runs that are asked for, one per line of the input."""
    for line in sys.stdin:
        print(json.dumps(save(*json.loads(line))), flush=True)


class Side:
    """A version of the library, in a process of its own."""

    def __init__(self, python):
        self.process = subprocess.Popen(
            [python, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def save(self, *what):
        print(json.dumps(what), file=self.process.stdin, flush=True)
        return [statistics.median(each) for each in zip(*json.loads(self.process.stdout.readline()), strict=True)]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def between(ratios):
    """The interval that holds the median of what ``ratios`` are drawn from with a probability of at least 95 %."""
    ordered, count = sorted(ratios), len(ratios)
    out, left = 0, 0.0
    while 2 * (left := left + math.comb(count, out) / 2**count) <= 0.05:
        out += 1
    return (ordered[out - 1], ordered[count - out]) if out else (0.0, math.inf)


def compare(args, directory):
    sides = [Side(python) for python in (sys.executable, args.against or sys.executable)]
    print("| saved, MB | time | here, ms | there, ms | here / there | 95 % | rounds |")
    print("|---:|---|---:|---:|---:|---|---:|")
    for size in args.sizes:
        for side in sides:
            side.save(size, 2, directory)
        found = []
        for number in range(args.rounds):
            pair = [(index, sides[index].save(size, args.saves, directory)) for index in ((0, 1), (1, 0))[number % 2]]
            found.append([seconds for _, seconds in sorted(pair)])
        for index, kind in enumerate(("passed", "processor")):
            times = [(here[index], there[index]) for here, there in found]
            here, there = (1000 * statistics.median(each) for each in zip(*times, strict=True))
            ratios = [one / other for one, other in times]
            low, high = between(ratios)
            print(f"| {size:g} | {kind} | {here:.2f} | {there:.2f} | {statistics.median(ratios):.3f} ", end="")
            print(f"| {low:.3f} … {high:.3f} | {args.rounds} |", flush=True)
    for side in sides:
        side.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="PYTHON", help="by default this one: then the ratio shows the noise")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 30, 300], metavar="MB")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--directory", help="where checkpoints go for the while; by default a temporary folder")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightloop").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    if args.serve:
        serve()
        return
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        compare(args, directory)


if __name__ == "__main__":
    main()
