import pickle
import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightloop import Module, Plugin, Trainer, hookimpl, seed_everything

SIZE = 8


def draw():
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


class Noise(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.tensor([index, *draw()], dtype=torch.float64)


class Batched(Noise):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.tensor([0, *draw()], dtype=torch.float64) for _ in range(SIZE // 2))


class Seen(Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.epochs, self.dropped = {}, []

    def training_step(self, batch):
        self.epochs.setdefault(self.loop.epoch, []).append(batch.tolist())
        return self.w * 1.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Resume(Plugin):
    name = "resume"
    epoch: int
    batch: int = 0

    @hookimpl
    def before_fit(self, loop):
        loop.epoch, loop.batch_idx = self.epoch, self.batch
        loop.total_batches = 4 * self.epoch + self.batch


def epochs(dataset, count=2, resume=None, seed=5, stop=None, **options):
    module = Seen()
    options = {"batch_size": 2, "num_workers": 2, **options}
    loader = DataLoader(dataset, **options)
    plugins = ["-*"] if resume is None else ["-*", resume]
    limits = {} if stop is None else {"max_steps": stop}
    Trainer(plugins, seed=seed, max_epochs=count, **limits).fit(module, loader)
    return module.epochs


def flat(batches):
    return [tuple(item) for batch in batches for item in batch]


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "dataset", [Noise(), Batched(), Subset(Noise(), range(SIZE)), Stream()], ids=lambda d: type(d).__name__
)
def test_c59_workers_have_new_numbers_in_each_epoch_and_the_same_after_a_restart(dataset, persistent):
    whole = epochs(dataset, 2, persistent_workers=persistent)
    assert not set(flat(whole[0])) & set(flat(whole[1]))
    assert len(set(flat(whole[0]))) == SIZE
    assert epochs(dataset, 2, Resume(1), persistent_workers=persistent) == {1: whole[1]}


@pytest.mark.processes
def test_an_items_numbers_do_not_depend_on_workers_batches_or_persistence():
    expected = epochs(Noise(), 2)
    expected = {epoch: flat(batches) for epoch, batches in expected.items()}
    for options in ({"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}, {"batch_size": 4}):
        found = epochs(Noise(), 2, **options)
        assert {epoch: flat(batches) for epoch, batches in found.items()} == expected


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
def test_c59_inside_an_epoch_too(persistent):
    whole = epochs(Noise(), 2, persistent_workers=persistent)
    part = epochs(Noise(), 2, Resume(1, 2), persistent_workers=persistent)
    assert part == {1: whole[1][2:]}


def shout(worker):
    torch.manual_seed(worker)


@pytest.mark.processes
def test_the_users_own_loader_is_left_alone_and_its_worker_function_still_called():
    loader = DataLoader(Noise(), num_workers=1, worker_init_fn=shout)
    Trainer(["-*"], seed=1).fit(Seen(), loader)
    assert loader.worker_init_fn is shout
    assert type(loader.dataset) is Noise


def test_a_run_is_repeated():
    class Draws(Seen):
        def training_step(self, batch):
            self.dropped.append(draw())
            return super().training_step(batch)

    runs = []
    for seed in (3, 3, 4):
        module = Draws()
        Trainer(["-*"], seed=seed).fit(module, DataLoader(Noise(), shuffle=True))
        runs.append((module.epochs, module.dropped))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_seed_everything():
    assert seed_everything(7) == 7
    first = draw()
    seed_everything(7)
    assert draw() == first
    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)
    assert draw() == first


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, True, None])
def test_nonsense_is_refused(seed):
    with pytest.raises(ValueError, match="a seed must be a whole number from 0"):
        seed_everything(seed)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_nonsense_is_refused_at_construction(seed):
    with pytest.raises(ValueError, match=r"seed .* must be a whole number from 0"):
        Trainer(["-*"], seed=seed)


def test_a_seed_of_0_is_a_seed():
    trainer = Trainer(["-*"], seed=0)
    trainer.fit(Seen(), DataLoader(Noise()))
    assert pickle.loads(pickle.dumps(trainer.plugin("seed"))).seed == 0
