"""Whatever the loader, its workers, its sampler and its random numbers: stopped anywhere, a run reads on as it would have.

Each loader is made anew for each part of a run, as in a new process. Compared is what was read and drawn, to the bit, with
the run that was not stopped. A few combinations are run in each suite, all of them under ``torture``.
"""

import contextlib
import itertools
import random
import warnings

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lightloop import Module, Trainer
from tests.checkpoint.rig import CrashError, scramble, stop

SIZE, BATCH = 14, 3  # five batches, the last of two
BATCHES = 5


class Indices(Dataset):
    """Tells which sample was read; with ``rng``, augmented from a generator of its own, and with ``noise`` from torch's."""

    def __init__(self, rng=None, noise=False):
        self.rng, self.noise = rng, noise

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        drawn = torch.rand(()) if self.noise else torch.zeros(())
        return torch.tensor([float(index), 0.0 if self.rng is None else float(self.rng.random())]), drawn


class Lazy(Sampler):
    """Draws each index from torch's global numbers when it is asked for it."""

    def __init__(self):
        pass

    def __iter__(self):
        return (int(torch.randint(SIZE, ())) for _ in range(SIZE))

    def __len__(self):
        return SIZE


class Eager(Lazy):
    """Draws as soon as it is iterated over, not when it is first asked."""

    def __iter__(self):
        return iter(torch.randperm(SIZE).tolist())


class EagerBatches(Lazy):
    """Batches, all of which are drawn when it is iterated over."""

    def __iter__(self):
        return iter([batch.tolist() for batch in torch.randperm(SIZE).split(BATCH)])

    def __len__(self):
        return BATCHES


class Buckets(Sampler):
    """Batches of indices; the order within each is drawn when it is asked for, from Python's and numpy's numbers."""

    def __iter__(self):
        for start in range(0, SIZE, BATCH):
            batch = list(range(start, min(start + BATCH, SIZE)))
            random.shuffle(batch)
            yield numpy.random.permutation(batch).tolist()

    def __len__(self):
        return BATCHES


class Buffer(IterableDataset):
    """A shuffle buffer, from torch's, Python's and numpy's numbers; each worker has its share."""

    def __init__(self, rng=None):
        self.rng = rng

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        held = []
        for index in range(0 if info is None else info.id, SIZE, 1 if info is None else info.num_workers):
            held.append(index)
            if len(held) > 3:
                yield self.pick(held)
        while held:
            yield self.pick(held)

    def pick(self, held):
        at = torch.rand(()) + random.random() + float(numpy.random.rand())
        at = at if self.rng is None else at + float(self.rng.random())
        return torch.tensor([float(held.pop(int(at * 97) % len(held))), float(at)]), torch.zeros(())


class Sized(Buffer):
    def __len__(self):
        return SIZE


class Zipped:
    """A short loader that begins again as often as a long one needs it, and the long one."""

    def __init__(self, workers, persistent):
        options = {"num_workers": workers, "persistent_workers": persistent and workers > 0}
        self.long = DataLoader(Indices(), BATCH, shuffle=True, **options)
        self.short = [DataLoader(TensorDataset(torch.arange(4.0)), BATCH, shuffle=True, **options)]

    def __len__(self):
        return len(self.long)

    def __iter__(self):
        short = itertools.chain.from_iterable(iter(self.short[0]) for _ in itertools.count())
        for (x, drawn), (y,) in zip(self.long, short, strict=False):
            yield torch.cat([x, y.new_full((len(x), 1), float(y[0]))], 1), drawn


class Unsized(Zipped):
    __len__ = None


class Wrapped:
    """Changes what another loader gives."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for x, drawn in self.loader:
            yield x + torch.rand(()), drawn


def generator():
    return torch.Generator().manual_seed(5)


def by_index(**options):
    """A kind of loader with whatever workers."""
    data = options.pop("data", Indices)
    return lambda workers, persistent: DataLoader(
        data(),
        **{
            **({} if "batch_sampler" in options else {"batch_size": BATCH}),
            **{name: value() if callable(value) else value for name, value in options.items()},
            "num_workers": workers,
            "persistent_workers": persistent and workers > 0,
        },
    )


KINDS = {
    "in order": by_index(),
    "shuffled": by_index(shuffle=True),
    "shuffled, drop last": by_index(shuffle=True, drop_last=True),
    "generator": by_index(shuffle=True, generator=generator),
    "sampler's generator": by_index(sampler=lambda: RandomSampler(range(SIZE), generator=generator())),
    "replacement": by_index(sampler=lambda: RandomSampler(range(SIZE), replacement=True, num_samples=SIZE)),
    "replacement, generator": by_index(
        sampler=lambda: RandomSampler(range(SIZE), replacement=True, num_samples=40, generator=generator())
    ),
    "weighted": by_index(sampler=lambda: WeightedRandomSampler([1.0, 2.0] * 7, SIZE)),
    "weighted, generator": by_index(sampler=lambda: WeightedRandomSampler([1.0, 2.0] * 7, SIZE, generator=generator())),
    "subset": by_index(sampler=lambda: SubsetRandomSampler(range(2, 12))),
    "lazy": by_index(sampler=Lazy),
    "eager": by_index(sampler=Eager),
    "eager batches": by_index(batch_sampler=EagerBatches),
    "buckets": by_index(batch_sampler=Buckets),
    "augmented": by_index(data=lambda: Indices(noise=True), shuffle=True),
    "augmented by a generator": by_index(data=lambda: Indices(numpy.random.default_rng(3)), shuffle=True),
    "augmented by numpy's old one": by_index(data=lambda: Indices(numpy.random.RandomState(3))),
    "augmented by Python's": by_index(data=lambda: Indices(random.Random(3)), shuffle=True),
    "shuffle buffer": by_index(data=Buffer),
    "shuffle buffer, sized": by_index(data=Sized),
    "shuffle buffer, generator": by_index(data=lambda: Buffer(numpy.random.default_rng(3))),
    "zipped": Zipped,
    "zipped, unsized": Unsized,
    "wrapped": lambda workers, persistent: Wrapped(by_index(shuffle=True)(workers, persistent)),
}
DRAWS_IN_WORKERS = ("augmented", "shuffle buffer")
"""What a worker that lives on draws there is not repeated without a seed."""


class Net(Module):
    """Dropout, and draws from every global stream, so that a loader's draws are not alone."""

    def __init__(self, drops=True):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.drops, self.trace, self.seen = drops, [], []

    def training_step(self, batch, batch_idx):
        x, drawn = batch
        own = [float(torch.rand(())), random.random(), float(numpy.random.rand())] if self.drops else []
        self.trace.append((self.current_epoch, batch_idx, x.tolist(), drawn.tolist(), own))
        return self.layer(x[:, :1] / SIZE).mean()

    def validation_step(self, batch, batch_idx):
        self.seen.append(batch[0].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(directory, make, at, resume, **options):
    scramble(0 if resume is None else 4321)
    module = Net()
    options = {"checkpoint_dir": directory, "save_every": "1 batches", "max_epochs": 2, **options}
    val = options.pop("val", None)
    trainer = Trainer(["-progress", "-model_summary", stop(at)], resume=resume, **options)
    with contextlib.suppress(CrashError):
        trainer.fit(module, make(), None if val is None else val())
    return module, [float(torch.rand(())), random.random(), float(numpy.random.rand())]


def assert_reads_on(directory, make, places, warns=False, **options):
    """Stopped before each of the batches ``places``, counted through all epochs, the run reads what it would have."""
    whole, wanted = fit(directory / "whole", make, None, None, **options)
    trace, seen, resume = [], [], None
    with warnings.catch_warnings():
        if warns:
            warnings.filterwarnings("ignore", message="going on inside an epoch")
        for at in (*places, None):
            part, end = fit(directory / "parts", make, at, resume, **options)
            trace, seen, resume = trace + part.trace, seen + part.seen, "auto"
    assert trace == whole.trace
    assert seen == whole.seen
    assert end == wanted


def exact(kind, workers, persistent):
    """Whether what is read can be repeated without a seed: all but what workers draw that have lived on."""
    return not (workers and kind.startswith(DRAWS_IN_WORKERS))


CASES = [
    (kind, workers, persistent)
    for kind in KINDS
    for workers, persistent in ((0, False), (2, False), (2, True))
    if exact(kind, workers, persistent)
]
LEAN = [
    *((kind, 0, False) for kind in KINDS),
    ("shuffled", 2, True),
    ("weighted, generator", 2, True),
    ("lazy", 2, True),
    ("eager", 2, False),
    ("zipped", 2, True),
]


def is_warned(kind, workers):
    return bool(workers) and "zipped" not in kind and kind != "wrapped"


@pytest.mark.parametrize(("kind", "workers", "persistent"), LEAN)
def test_stopped_in_an_epoch_at_its_end_and_in_the_next(tmp_path, kind, workers, persistent):
    make = lambda: KINDS[kind](workers, persistent)
    assert_reads_on(tmp_path, make, (2, BATCHES, BATCHES + 3), warns=is_warned(kind, workers))


@pytest.mark.torture
@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize(("kind", "workers", "persistent"), CASES)
def test_stopped_before_any_batch(tmp_path, kind, workers, persistent, at):
    assert_reads_on(
        tmp_path, lambda: KINDS[kind](workers, persistent), (at,), warns=is_warned(kind, workers), max_epochs=3
    )


@pytest.mark.torture
@pytest.mark.parametrize(("kind", "workers", "persistent"), CASES)
def test_stopped_before_every_batch(tmp_path, kind, workers, persistent):
    make = lambda: KINDS[kind](workers, persistent)
    assert_reads_on(
        tmp_path, make, range(1, 12), warns=is_warned(kind, workers), accumulate_grad_batches=2, max_epochs=3
    )


SEEDED = ["shuffled", "augmented", "augmented by a generator", "weighted", "shuffle buffer"]


@pytest.mark.parametrize("kind", SEEDED[:2])
def test_a_seed_repeats_what_workers_draw(tmp_path, kind):
    assert_reads_on(tmp_path, lambda: KINDS[kind](2, True), (BATCHES + 3,), seed=7)


@pytest.mark.torture
@pytest.mark.parametrize("at", [2, BATCHES, BATCHES + 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", SEEDED)
def test_a_seed_repeats_what_is_drawn(tmp_path, kind, workers, persistent, at):
    if kind == "augmented by a generator" and workers:
        pytest.skip("a generator that a dataset holds is in each worker")
    assert_reads_on(tmp_path, lambda: KINDS[kind](workers, persistent), (at,), seed=7)


@pytest.mark.parametrize(
    "options",
    [{"limit_train_batches": 4}, {"limit_train_batches": 0.7, "accumulate_grad_batches": 2}],
)
@pytest.mark.parametrize("kind", ["shuffled", "lazy", "shuffle buffer, sized", "wrapped"])
def test_a_limit_goes_with_it(tmp_path, kind, options):
    assert_reads_on(tmp_path, lambda: KINDS[kind](0, False), (2, 4, 5), **options)


@pytest.mark.parametrize(("kind", "workers"), [("shuffled", 2), ("generator", 0), ("weighted, generator", 2)])
def test_validation_reads_what_it_would_have(tmp_path, kind, workers):
    val = lambda: KINDS[kind](workers, True)
    assert_reads_on(
        tmp_path, lambda: KINDS["shuffled"](0, False), (2, 8), val=val, limit_val_batches=2, val_check_interval=3
    )


def test_another_number_of_workers_keeps_the_order(tmp_path):
    for before, after in ((2, 0), (0, 2)):
        whole, _ = fit(tmp_path / f"whole{before}", lambda: KINDS["shuffled"](0, False), None, None)
        first, _ = fit(tmp_path / str(before), lambda before=before: KINDS["shuffled"](before, False), 7, None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="going on inside an epoch")
            rest, _ = fit(tmp_path / str(before), lambda after=after: KINDS["shuffled"](after, False), None, "auto")
        assert [line[2] for line in first.trace + rest.trace] == [line[2] for line in whole.trace]


def test_a_lazy_sampler_with_fewer_workers_than_before_takes_nothing_from_the_model(tmp_path):
    """What it had been asked for ahead is drawn again beside the model, whose own numbers stay what they were."""
    make = lambda workers: lambda: KINDS["lazy"](workers, False)
    whole, _ = fit(tmp_path / "whole", make(2), None, None)
    first, _ = fit(tmp_path / "parts", make(2), 2, None)
    rest, _ = fit(tmp_path / "parts", make(0), None, "auto")
    epoch = [line[2] for line in first.trace + rest.trace][:BATCHES]
    assert epoch == [line[2] for line in whole.trace][:BATCHES]
    assert rest.trace[0][4] == whole.trace[2][4]


def test_data_that_draws_nothing_costs_a_checkpoint_nothing(tmp_path):
    from lightloop_plugins.checkpoint.weights.load import load_path

    fit(tmp_path, lambda: KINDS["in order"](0, False), 3, None)
    assert "moved" not in load_path(tmp_path).state["ranks"][0]["loader"]
