"""A run in which everything is random, and all that must be the same when it is killed and gone on with."""

import contextlib
import random

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop_plugins.resumable import ResumableLoader

SIZE, BATCH = 23, 4  # six batches, the last one of three


class Samples(Dataset):
    """Samples that tell their index; with ``noise``, they are augmented by three kinds of random numbers."""

    def __init__(self, noise=True):
        self.noise = noise
        self.read = 0

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        self.read += 1
        x = torch.sin(torch.arange(4.0) * (index + 1))
        if self.noise:
            x = x + 0.1 * torch.randn(4) + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
        return index, x, x.sum() * 0.5


class Stream(IterableDataset):
    def __iter__(self):
        return iter([Samples(noise=False)[index] for index in range(SIZE)])


class Net(Module):
    """Dropout, running statistics, a buffer that is in no state_dict, a generator of its own, an extra state, two optimizers."""

    def __init__(self, optimizers=1, scheduler=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.generator = torch.Generator().manual_seed(3)
        self.own = random.Random(4)
        self.calls = 0
        self.count, self.scheduled = optimizers, scheduler
        self.trace = []

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]

    def training_step(self, batch, batch_idx):
        index, x, y = batch
        self.calls += 1
        with torch.no_grad():
            self.seen += x.mean()
        noise = (
            torch.randn(x.shape, generator=self.generator) * 0.01 + self.own.random() * 0.01 + random.random() * 0.01
        )
        guess = self.head(self.body(x + noise + float(numpy.random.rand()) * 0.01)).squeeze(1)
        loss = nn.functional.mse_loss(guess, y) * (1 + 0.001 * self.seen.detach()) * (1 + 0.001 * self.calls)
        self.log("loss", loss, on_epoch=True)
        self.trace.append((self.current_epoch, batch_idx, index.tolist(), loss.item()))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log(
            "val", nn.functional.mse_loss(self.head(self.body(batch[1])).squeeze(1), batch[2]) + torch.rand(()) * 0.01
        )

    def configure_optimizers(self):
        if self.count == 2:
            return [
                torch.optim.SGD(self.body.parameters(), lr=0.05, momentum=0.9),
                torch.optim.AdamW(self.head.parameters(), lr=0.02),
            ]
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        if not self.scheduled:
            return optimizer
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=200)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": [
                {"scheduler": scheduler, "interval": "step"},
                {"scheduler": plateau, "interval": "epoch", "monitor": "val", "strict": False},
            ],
        }


class CrashError(Exception):
    pass


class Stop(Plugin):
    """Ends the run with an error when so many batches are done."""

    name = "stop_for_test"
    before = ("checkpoint",)

    def validate(self):
        self.at = None

    @hookimpl
    def before_batch(self, loop):
        if loop.total_batches == self.at:
            raise CrashError


def stop(at):
    plugin = Stop()
    plugin.at = at
    return plugin


def worker_noise(workers, **options):
    persistent = {"persistent_workers": True} if options.pop("persistent", False) else {}
    return ResumableLoader(Samples(), BATCH, shuffle=True, seed=5, num_workers=workers, **persistent, **options)


LOADERS = {
    "resumable": lambda: worker_noise(0),
    "resumable, drop last": lambda: worker_noise(0, drop_last=True),
    "plain": lambda: DataLoader(Samples(), BATCH, shuffle=True),
    "generator": lambda: DataLoader(Samples(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(7)),
    "own sampler generator": lambda: DataLoader(
        Samples(), BATCH, sampler=RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(9))
    ),
    "more samples than data": lambda: DataLoader(Samples(), BATCH, sampler=RandomSampler(range(SIZE), num_samples=30)),
    "weighted": lambda: DataLoader(Samples(), BATCH, sampler=WeightedRandomSampler([1.0, 2.0] * 10, 20)),
    "batch sampler": lambda: DataLoader(Samples(), batch_sampler=[[0, 3], [4, 1], [2, 2], [1, 0, 7]]),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "list": lambda: list(DataLoader(Samples(noise=False), BATCH)),
}


def scramble(seed=99):
    """As a new process would be."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def train(directory, make_loader, plugins=(), resume=None, module=None, epochs=3, **options):
    """One process's share of a run: everything is made anew."""
    scramble(0 if resume is None else 1234)
    module = Net() if module is None else module()
    scramble(11 if resume is None else 77)
    options = {"checkpoint_dir": directory, "save_every": "1 batches", "max_epochs": epochs, **options}
    trainer = Trainer(["-progress", "-model_summary", *plugins], resume=resume, **options)
    with contextlib.suppress(CrashError):
        trainer.fit(module, make_loader(), DataLoader(Samples(noise=False), 8))
    return module, trainer


def outcome(module, trainer):
    """All that two runs must have in common at their end, in a form that compares to the bit."""
    loop = trainer.loop
    return {
        "weights": bits(dict(module.named_parameters())),
        "buffers": bits(dict(module.named_buffers())),
        "calls": module.calls,
        "optimizers": bits([optimizer.state_dict() for optimizer in loop.optimizers]),
        "schedulers": bits([schedule.scheduler.state_dict() for schedule in loop.schedules]),
        "counters": [loop.epoch, loop.global_step, loop.total_batches, loop.total_pieces, loop.optimizer_steps],
        "metrics": bits({name: float(value) for name, value in loop.metrics.latest.items()}),
        "updates": dict(loop.metrics.updates),
        "random": [float(torch.rand(())), random.random(), float(numpy.random.rand())],
        "generators": [float(torch.rand((), generator=module.generator)), module.own.random()],
    }


def bits(value):
    if isinstance(value, torch.Tensor):
        value = value if value.layout is torch.strided else value.to_dense()
        return (str(value.dtype), tuple(value.shape), value.detach().cpu().contiguous().reshape(-1).tolist())
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(part) for part in value]
    return repr(value)
