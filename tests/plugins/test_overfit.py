import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from lightloop import Module, Trainer
from lightloop.testing import probe_batches


class Seen(Module):
    """Keeps what each batch had in it."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.trained, self.evaluated = [], []

    def training_step(self, batch):
        self.trained.append(numbers(batch))
        return self.w * 1.0

    def validation_step(self, batch):
        self.evaluated.append(numbers(batch))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def numbers(batch):
    return torch.as_tensor(batch[0] if isinstance(batch, (list, tuple)) else batch).flatten().int().tolist()


def loader(size=10, **options):
    return DataLoader(TensorDataset(torch.arange(size)), **{"batch_size": 2, **options})


class Backwards(Sampler):
    def __init__(self, size):
        self.size, self.turn = size, 0

    def __iter__(self):
        self.turn += 1
        return iter([(index + self.turn) % self.size for index in reversed(range(self.size))])

    def __len__(self):
        return self.size


class Noise(IterableDataset):
    def __iter__(self):
        return iter(torch.randint(1000, (10,)))


def fit(train, val=None, batches=2, epochs=3, **options):
    module = Seen()
    Trainer(["-*", "validation"], overfit_batches=batches, max_epochs=epochs, num_sanity_val_steps=0, **options).fit(
        module, train, val
    )
    return module


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"shuffle": True, "generator": torch.Generator()}],
    ids=["plain", "shuffled", "generator"],
)
def test_the_first_batches_in_their_order(options):
    assert fit(loader(**options)).trained == [[0, 1], [2, 3]] * 3


def test_training_and_validation_each_have_their_own():
    module = fit(loader(10, shuffle=True), loader(10, batch_size=3, shuffle=True))
    assert module.trained == [[0, 1], [2, 3]] * 3
    assert module.evaluated == [[0, 1, 2], [3, 4, 5]] * 3


@pytest.mark.parametrize(("batches", "count"), [(0.2, 1), (0.4, 2), (1.0, 5), (3, 3), (99, 5)])
def test_numbers_and_fractions(batches, count):
    assert fit(loader(shuffle=True), batches=batches, epochs=1).trained == [[2 * i, 2 * i + 1] for i in range(count)]


@pytest.mark.parametrize("batch_size", [None, 1])
def test_other_ways_to_batch(batch_size):
    assert fit(loader(shuffle=True, batch_size=batch_size)).trained == [[0], [1]] * 3
    assert fit(probe_batches(4)).trained == [[1], [2]] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: loader(sampler=Backwards(10)),
        lambda: DataLoader(
            TensorDataset(torch.arange(10)), batch_sampler=torch.utils.data.BatchSampler(Backwards(10), 2, False)
        ),
        lambda: DataLoader(Noise(), batch_size=2),
        lambda: map(torch.tensor, ([i] for i in range(10))),
    ],
    ids=["sampler", "batch sampler", "stream", "iterator"],
)
def test_what_cannot_be_read_in_sequence_is_kept(make):
    seen = fit(make()).trained
    assert len(seen) == 6
    assert seen[:2] == seen[2:4] == seen[4:]
    assert seen[0] != seen[1]


def test_the_users_loader_and_test_data_are_left_alone():
    train = loader(shuffle=True)
    sampler, batch_sampler = train.sampler, train.batch_sampler
    fit(train)
    assert (train.sampler, train.batch_sampler) == (sampler, batch_sampler)
    module = Seen()
    Trainer(["-*"], overfit_batches=1).test(module, loader(6))
    assert module.evaluated == [[0, 1], [2, 3], [4, 5]]


def test_it_does_overfit():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
    losses = []

    class Learns(Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))

        def training_step(self, batch):
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    Trainer(["-*"], overfit_batches=1, max_epochs=60).fit(Learns(), DataLoader(data, batch_size=8, shuffle=True))
    assert losses[-1] < losses[0] / 20


@pytest.mark.parametrize("value", [-1, -0.5, 1.5, float("nan")])
def test_nonsense_is_refused(value):
    with pytest.raises(ValueError, match="overfit_batches"):
        Trainer(["-*"], overfit_batches=value)


def test_fractions_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match=r"overfit_batches .* does not round to 0 of 5 batches"):
        fit(loader(), batches=0.1)
    with pytest.raises(ValueError, match=r"overfit_batches .* does not know its length"):
        fit(iter(probe_batches()), batches=0.5)


@pytest.mark.parametrize("value", [0, 0.0])
def test_0_is_off(value):
    assert Trainer(["-*"], overfit_batches=value).plugin("overfit") is None


def test_the_old_name():
    with pytest.warns(DeprecationWarning, match="'overfit_pct' is now called 'overfit_batches'"):
        assert Trainer(["-*"], overfit_pct=0.2).plugin("overfit").batches == 0.2
