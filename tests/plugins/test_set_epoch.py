import pickle

import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, DistributedSampler, Sampler, Subset

from lightloop import Module, Plugin, Trainer, hookimpl


class Told:
    """Notes the epochs that it is told of, and when it is read."""

    def __init__(self, *held):
        self.epochs, self.held = [], held

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        self.epochs.append("read")
        return iter(range(4))

    def __len__(self):
        return 4


class ToldSampler(Told, Sampler):
    pass


class ToldBatches(Told):
    def __iter__(self):
        super().__iter__()
        return iter([[0, 1], [2, 3]])

    def __len__(self):
        return 2


class ToldData(Told, Dataset):
    __iter__ = None

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Wrapper:
    """Somebody's wrapper of a sampler, which knows of no epoch."""

    def __init__(self, inner):
        self._inner = inner

    def __iter__(self):
        return iter(self._inner)

    def __len__(self):
        return len(self._inner)


class Model(Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch):
        return self.w * 1.0

    def validation_step(self, batch):
        pass

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Resume(Plugin):
    name = "resume"
    epoch: int

    @hookimpl
    def before_fit(self, loop):
        loop.epoch, loop.total_batches = self.epoch, 4 * self.epoch


def fit(train, val=None, first=0, **options):
    trainer = Trainer(["-*", "set_epoch", "validation", Resume(first)], max_epochs=3, **options)
    trainer.fit(Model(), train, val)
    assert pickle.loads(pickle.dumps(trainer.plugin("set_epoch")))


DATA = list(torch.arange(4.0))
EACH = [0, "read", 1, "read", 2, "read"]


@pytest.mark.parametrize(
    ("make", "wrap"),
    [
        (ToldSampler, lambda told: DataLoader(DATA, sampler=told)),
        (ToldSampler, lambda told: DataLoader(DATA, batch_sampler=BatchSampler(told, 2, False))),
        (ToldBatches, lambda told: DataLoader(DATA, batch_sampler=told)),
        (Told, lambda told: DataLoader(DATA, sampler=Wrapper(told))),
        (Told, lambda told: DataLoader(DATA, sampler=Wrapper(Wrapper(told)))),
        (ToldBatches, lambda told: DataLoader(DATA, batch_sampler=Wrapper(told))),
        (Told, lambda told: told),
        (Told, Wrapper),
        (ToldSampler, lambda told: Wrapper(DataLoader(DATA, sampler=told))),
    ],
    ids=[
        "sampler",
        "in a batch sampler",
        "batch sampler",
        "wrapped",
        "twice",
        "wrapped batches",
        "loader",
        "own",
        "both",
    ],
)
def test_c69_each_is_told_of_each_epoch_once_before_it_is_read(make, wrap):
    told = make()
    fit(wrap(told))
    assert told.epochs == EACH
    told = make()
    fit(wrap(told), first=2)
    assert told.epochs == [2, "read"]


@pytest.mark.parametrize(
    "wrap", [lambda data: data, lambda data: Subset(data, range(3)), lambda data: ConcatDataset([data, ToldData()])]
)
def test_c69_datasets_are_told_too(wrap):
    data = ToldData()
    fit(DataLoader(wrap(data)))
    assert data.epochs == [0, 1, 2]


def test_c69_in_evaluation_too():
    told = ToldSampler()
    fit(DATA, DataLoader(DATA, sampler=told), val_check_interval=2)
    assert [epoch for epoch in told.epochs if epoch != "read"] == [0, 1, 2]
    assert told.epochs[0] == 0  # the sanity pass
    told = ToldSampler()
    Trainer(["-*", "set_epoch"]).test(Model(), DataLoader(DATA, sampler=told))
    assert told.epochs == [0, "read"]


def test_one_that_is_shared_is_told_once():
    told = ToldSampler()
    loader = DataLoader(DATA, sampler=told)
    fit(loader, loader)
    assert [epoch for epoch in told.epochs if epoch != "read"] == [0, 1, 2]


def test_after_limits_and_reloading():
    told = []

    class Own(Model):
        def train_dataloader(self):
            told.append(ToldSampler())
            return DataLoader(DATA, sampler=told[-1])

    Trainer(["-*", "set_epoch"], max_epochs=3, limit_train_batches=2, reload_dataloaders_every_n_epochs=1).fit(Own())
    assert [one.epochs for one in told] == [[0, "read"], [1, "read"], [2, "read"]]


def test_each_epoch_has_an_order_of_its_own():
    orders = []

    class Orders(Model):
        def training_step(self, batch):
            orders[-1].append(int(batch)) if self.loop.batch_idx else orders.append([int(batch)])
            return super().training_step(batch)

    data = list(torch.arange(8.0))
    sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=3)
    Trainer(["-*", "set_epoch"], max_epochs=3).fit(Orders(), DataLoader(data, sampler=sampler))
    expected = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected.append(list(sampler))
    assert orders == expected
    assert orders[0] != orders[1] != orders[2]


def test_it_is_live_by_itself():
    assert Trainer().plugin("set_epoch")
