import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Trainer
from lightloop.testing import TinyClassifier
from lightloop_plugins.batch_size_find import batch_size_find

DATA = TensorDataset(torch.randn(200, 4), torch.randint(0, 3, (200,)))


class Small(TinyClassifier):
    """Has memory for batches of so many samples."""

    tried: list = []

    def __init__(self, room, error=None):
        super().__init__()
        self.room, self.batch_size = room, 1
        self.error = error or torch.OutOfMemoryError("out of memory, says the test")
        Small.tried = []

    def training_step(self, batch, batch_idx):
        Small.tried.append(len(batch[0]))
        if len(batch[0]) > self.room:
            raise self.error
        return super().training_step(batch, batch_idx)

    def train_dataloader(self):
        return DataLoader(DATA, self.batch_size, shuffle=True)


def loader(size):
    return DataLoader(DATA, size)


@pytest.mark.parametrize(("mode", "found"), [("power", 32), ("binary", 50)])
def test_the_largest_size_is_found(mode, found):
    module = Small(50)
    assert batch_size_find(Trainer(["-*"]), module, loader, mode=mode, start=16, steps=1) == found
    sizes = [16, 32, 64]
    assert Small.tried == (sizes if mode == "power" else [*sizes, 48, 56, 52, 50, 51])


def test_a_trial_makes_several_steps():
    batch_size_find(Trainer(["-*"]), Small(5), loader, steps=3)
    assert Small.tried == [2, 2, 2, 4, 4, 4, 8]
    batch_size_find(Trainer(["-*"], accumulate_grad_batches=2), Small(2), loader, steps=2)
    assert Small.tried == [2, 2, 2, 2, 4]


def test_neither_a_limit_nor_the_data_is_passed():
    trainer = Trainer(["-*"])
    assert batch_size_find(trainer, Small(1000), loader, start=100, steps=1) == 200
    assert batch_size_find(trainer, Small(1000), loader, start=30, limit=50, steps=1) == 50
    assert Small.tried == [30, 50]
    assert batch_size_find(trainer, Small(48), loader, start=30, limit=50, steps=1, mode="binary") == 48
    assert batch_size_find(trainer, Small(1000), loader, limit=2, start=8, steps=1) == 2


def test_the_modules_attribute_is_set_and_nothing_else_is_changed():
    module, trainer = Small(20), Trainer(["-*"], ema_decay=0.5)
    weights, random = pickle.dumps(module.state_dict()), torch.get_rng_state()
    before = pickle.dumps(trainer.plugins)
    assert batch_size_find(trainer, module, mode="binary", start=16) == 20
    assert module.batch_size == 20
    assert pickle.dumps(module.state_dict()) == weights
    assert torch.equal(torch.get_rng_state(), random)
    assert pickle.dumps(trainer.plugins) == before


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
        ),
        RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
    ],
    ids=str,
)
def test_memory_errors_of_other_devices(error):
    assert batch_size_find(Trainer(["-*"]), Small(4, error), loader, steps=1) == 4


def test_other_errors_are_the_users():
    with pytest.raises(RuntimeError, match="something else"):
        batch_size_find(Trainer(["-*"]), Small(4, RuntimeError("something else")), loader)
    with pytest.raises(ValueError, match="there is no memory even for batches of 2"):
        batch_size_find(Trainer(["-*"]), Small(1), loader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0}, "start must be a whole number from 1; it is 0"),
        ({"steps": 0}, "steps must be"),
        ({"limit": 0}, "limit must be"),
        ({"mode": "guess"}, "'power' or 'binary'; it is 'guess'"),
        ({"attribute": "size"}, "Small has no attribute 'size' to set"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        batch_size_find(Trainer(["-*"]), Small(4), **options)


def test_as_an_option_it_sets_the_size_before_training():
    module = Small(25)
    Trainer(["-*"], auto_scale_batch_size="binary", max_steps=2).fit(module)
    assert module.batch_size == 25
    assert Small.tried[-2:] == [25, 25]
    module = Small(25)
    Trainer(["-*"], auto_scale_batch_size=True, max_steps=2).fit(module)
    assert module.batch_size == 16
    with pytest.raises(ValueError, match=r"auto_scale_batch_size \(batch_size_find.mode\) must be 'power', 'binary'"):
        Trainer(["-*"], auto_scale_batch_size="guess")
