"""What can be said of the plugins for Lightning where Lightning is not; tests/lightning has the rest."""

import subprocess
import sys
from types import ModuleType

import pytest

from lightloop import Trainer
from lightloop.testing import TinyClassifier, classification_batches
from lightloop.toolkit import discover

PLUGINS = [name for name in ("lightning", "lightning_data", "lightning_epoch_end") if discover()[name].plugin]


def live(trainer):
    return [plugin.name for plugin in trainer.plugins if plugin.name in PLUGINS]


def test_they_are_there_by_themselves_where_lightning_is_imported(monkeypatch):
    assert live(Trainer()) == []
    monkeypatch.setitem(sys.modules, "pytorch_lightning", ModuleType("pytorch_lightning"))
    assert live(Trainer()) == PLUGINS


def test_they_change_nothing_for_other_modules(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_lightning", ModuleType("pytorch_lightning"))
    trainer = Trainer()
    trainer.fit(TinyClassifier(), classification_batches(), classification_batches(1))
    with_them = trainer.loop.metrics.latest
    trainer = Trainer([f"-{name}" for name in PLUGINS])
    trainer.fit(TinyClassifier(), classification_batches(), classification_batches(1))
    assert list(with_them) == list(trainer.loop.metrics.latest)


def test_lightning_is_never_imported():
    program = (
        "import sys; from lightloop import Trainer; from lightloop.testing import *; "
        "Trainer(logger=False, enable_checkpointing=False).fit(TinyClassifier(), classification_batches()); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('lightning', 'pytorch_lightning')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_is_no_data_module_is_refused():
    with pytest.raises(ValueError, match=r"datamodule \(lightning_data.datamodule\) must be a LightningDataModule"):
        Trainer(datamodule=[1, 2])


def test_loaders_by_keyword_are_those_of_any_module():
    class Own(TinyClassifier):
        def train_dataloader(self):
            raise AssertionError("not asked")

    trainer = Trainer(logger=False, enable_checkpointing=False)
    result = trainer.fit(Own(), train_dataloaders=classification_batches(3), val_dataloaders=classification_batches(1))
    assert result.global_step == 3
    assert "val_loss" in result.metrics
