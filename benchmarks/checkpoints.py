"""What checkpoints cost: the share of training that saving takes, and how long it takes to go on.

    python benchmarks/checkpoints.py [--rounds 5] [--batches 60] [--every 20] [--far 100000] [--directory DIR]

Saving: a multilayer perceptron with Adam, so that three times its parameters are saved, on batches of 64 in memory. In each
round the run is made without saving, with saving, and with saving on a thread; of each the fastest round counts, because
machines are shared, and shares are of the time of the run without. What it takes to begin and to end is out of the clock.

Going on: a tiny model is trained on a batch at a time until so many batches of one epoch are done; what is measured is the
time from fit() to the first batch, beside the same for a run that begins. With a ResumableLoader the place is computed; for
a shuffled DataLoader the sampler passes over what was trained on, and no data is read.
"""

import argparse
import logging
import tempfile
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop_plugins.resumable import ResumableLoader

QUIET = ["-progress", "-model_summary", "-csv", "-log_every"]
WAYS = {"none": {"enable_checkpointing": False}, "plain": {"async_save": False}, "thread": {"async_save": True}}
NEAR = 1_000


class Net(Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def training_step(self, batch):
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Tiny(Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch):
        return (self.weight - batch[0]).square()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Numbers(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return float(index % 7)


class Between(Plugin):
    """Notes when the first batch begins, and when the last one is done."""

    name = "between"
    before = ("checkpoint",)

    def validate(self):
        self.first = self.last = None

    @hookimpl
    def before_batch(self):
        self.first = self.first or time.perf_counter()

    @hookimpl(tryfirst=True)
    def between_batches(self):
        self.last = time.perf_counter()


def train(width, batches, every, directory, way):
    """Seconds from the first batch to the end of the last."""
    between = Between()
    options = {
        "checkpoint_dir": f"{directory}/{width}-{way}-{time.time_ns()}",
        "save_every": f"{every} batches",
        **WAYS[way],
    }
    generator = torch.Generator().manual_seed(2)
    data = [
        (torch.randn(64, 256, generator=generator), torch.randint(10, (64,), generator=generator)) for _ in range(20)
    ]
    trainer = Trainer([*QUIET, between], max_steps=batches, max_epochs=-1, **options)
    trainer.fit(Net(width), data)
    return between.last - between.first


def saving(args, directory):
    print("| parameters | saved, MB | batches per save | ms per batch | saving takes | on a thread |")
    print("|---:|---:|---:|---:|---:|---:|")
    for width in (256, 1024, 2048):
        train(width, 5, 5, directory, "plain")  # warms up
        rounds = [
            {way: train(width, args.batches, args.every, directory, way) for way in WAYS} for _ in range(args.rounds)
        ]
        best = {way: min(seconds[way] for seconds in rounds) for way in WAYS}
        size = sum(parameter.numel() for parameter in Net(width).parameters())
        plain, thread = (f"{100 * (best[way] / best['none'] - 1):.1f} %" for way in ("plain", "thread"))
        batch = 1000 * best["none"] / args.batches
        print(f"| {size:,} | {12 * size / 1e6:.1f} | {args.every} | {batch:.2f} | {plain} | {thread} |")


def begin(loader, directory, resume, steps=1):
    """Seconds from fit() to the first batch."""
    between = Between()
    options = {"checkpoint_dir": directory, "save_every": None, "max_steps": steps, "save_last": 9}
    trainer = Trainer([*QUIET, between], **options)
    began = time.perf_counter()
    trainer.fit(Tiny(), loader, resume=resume)
    return between.first - began


def going_on(args, directory):
    print(f"| loader | begin, ms | after {NEAR:,} batches, ms | after {args.far:,} batches, ms | ratio of the two |")
    print("|---|---:|---:|---:|---:|")
    data = Numbers(2 * args.far)
    loaders = {
        "ResumableLoader": lambda: ResumableLoader(data, 1, shuffle=True, seed=1),
        "DataLoader, shuffled": lambda: DataLoader(data, 1, shuffle=True),
    }
    for name, make in loaders.items():
        places = {}
        for batches in (NEAR, args.far):
            places[batches] = f"{directory}/{name}-{batches}"
            begin(make(), places[batches], None, batches)
        found = {None: [], **{batches: [] for batches in places}}
        for number in range(args.rounds + 1):  # the first one warms up
            found[None].append(begin(make(), f"{directory}/{name}-{number}", None))
            for batches, place in places.items():
                found[batches].append(begin(make(), place, "auto", batches + number + 1))
        start, near, far = (1000 * min(each[1:]) for each in found.values())
        print(f"| {name} | {start:.1f} | {near:.1f} | {far:.1f} | {far / near:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--far", type=int, default=100_000)
    parser.add_argument("--directory", help="where checkpoints go for the while; by default a temporary folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightloop").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        saving(args, directory)
        print()
        going_on(args, directory)


if __name__ == "__main__":
    main()
