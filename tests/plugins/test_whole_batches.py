"""A DataLoader over tensors gives the same batches, sooner."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier
from lightloop_plugins.whole_batches import Whole, can

GENERATOR = torch.Generator().manual_seed(3)
DATASET = TensorDataset(torch.randn(21, 4, generator=GENERATOR), torch.arange(21) % 3)
LOADERS = {
    "in order": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "the last is left out": {"batch_size": 4, "drop_last": True, "shuffle": True},
    "by a sampler": {"batch_size": 5, "sampler": WeightedRandomSampler([1.0] * 10 + [3.0] * 11, 12)},
    "by a sampler of batches": {"batch_sampler": [[1, 2], [20], [3, 3, 3]]},
    "by a generator": {"batch_size": 4, "shuffle": True, "generator": True},
}


class Sees(Plugin):
    name = "sees"

    def validate(self):
        self.batches, self.kinds = [], []

    @hookimpl
    def before_batch(self, loop):
        self.batches.append(loop.batch)
        self.kinds.append(type(loop.train_loader.dataset))


def batches(*plugins, **how):
    """What two epochs are trained on, and the state of the random numbers after them."""
    if "generator" in how:
        how["generator"] = torch.Generator().manual_seed(5)
    torch.manual_seed(0)
    trainer = Trainer(["-*", sees := Sees(), *plugins], max_epochs=2)
    trainer.fit(TinyClassifier(), DataLoader(DATASET, **how))
    return sees, torch.get_rng_state()


@pytest.mark.parametrize("how", LOADERS.values(), ids=LOADERS)
def test_the_same_batches_and_random_numbers(how):
    one, state = batches(**how)
    whole, whole_state = batches("whole_batches", **how)
    assert (set(one.kinds), set(whole.kinds)) == ({TensorDataset}, {Whole})
    assert len(one.batches) == len(whole.batches) > 2
    assert torch.equal(state, whole_state)
    for batch, other in zip(one.batches, whole.batches, strict=True):
        assert type(batch) is type(other) is list
        for tensor, same in zip(batch, other, strict=True):
            assert torch.equal(tensor, same)
            assert (tensor.dtype, tensor.stride()) == (same.dtype, same.stride())


class Images(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.ones(2)


class MyTensors(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)


class MyLoader(DataLoader):
    pass


@pytest.mark.parametrize(
    "loader",
    [
        [DATASET[:4]],
        DataLoader(Images()),
        DataLoader(MyTensors(torch.ones(3))),
        MyLoader(DATASET),
        DataLoader(DATASET, collate_fn=list),
        DataLoader(DATASET, batch_size=None),
        DataLoader(DATASET, num_workers=1),
        DataLoader(TensorDataset(torch.eye(3).to_sparse())),
    ],
    ids=["list", "dataset", "subclass", "own loader", "own collate", "samples", "workers", "sparse"],
)
def test_all_else_is_read_as_it_is(loader):
    assert not can(loader)


def test_the_users_loader_is_left_alone():
    loader = DataLoader(DATASET, batch_size=4)
    Trainer(["-*", "whole_batches"]).fit(TinyClassifier(), loader)
    assert loader.dataset is DATASET
    assert can(loader)
