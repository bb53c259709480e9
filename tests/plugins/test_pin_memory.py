import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Trainer
from lightloop.testing import TinyClassifier, classification_batches
from lightloop_plugins.accelerators import pin_memory


@pytest.fixture
def loader():
    x, y = (torch.cat(parts) for parts in zip(*classification_batches(4), strict=True))
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)


def test_on_a_cpu_the_loader_stays_as_it_is(loader):
    trainer = Trainer(["-*"], pin_memory=True)
    trainer.fit(TinyClassifier(), loader)
    assert trainer.loop.train_loader is loader


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator, and so nothing to warn of")
def test_elsewhere_all_loaders_are_read_pinned_and_the_users_own_stays_as_it_is(loader, monkeypatch):
    """That torch warns of pinning without a device shows that it was asked to."""
    monkeypatch.setattr(pin_memory, "STREAMS", ("cpu",))
    trainer = Trainer(["-*", "validation"], pin_memory=True, limit_train_batches=2)
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator is found"):
        trainer.fit(TinyClassifier(), loader, {"pinned": loader, "list": list(loader)})
    assert not loader.pin_memory
    read = trainer.loop.train_loader.loader
    others = {"pin_memory", "_iterator"}
    assert read.pin_memory
    assert {name: value for name, value in vars(read).items() if name not in others} == {
        name: value for name, value in vars(loader).items() if name not in others
    }
    validated = trainer.loop.eval_loaders["validate"]
    assert validated["pinned"].pin_memory
    assert type(validated["list"]) is list


def test_pinning_changes_no_batch(loader, monkeypatch):
    def trained(**options):
        torch.manual_seed(0)
        module = TinyClassifier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            Trainer(["-*"], **options).fit(module, loader)
        return list(module.parameters())

    plain = trained()
    monkeypatch.setattr(pin_memory, "STREAMS", ("cpu",))
    for one, other in zip(trained(pin_memory=True), plain, strict=True):
        assert torch.equal(one, other)
