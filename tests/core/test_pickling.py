"""Trainers and every installed plugin of ours can be sent to another process, configured and after a run."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches
from lightloop.toolkit import discover

OURS = {name: found.plugin for name, found in discover().items() if found.distribution == "lightloop" and found.plugin}


def options(plugin: Plugin) -> dict[str, Any]:
    return {field.name: getattr(plugin, field.name) for field in dataclasses.fields(plugin)}


@pytest.mark.parametrize("name", OURS)
def test_c81_every_plugin_pickles(name):
    try:
        plugin = OURS[name]()
    except (ValueError, TypeError):
        pytest.skip("is nothing without a value, and is pickled in its own tests")
    copy = pickle.loads(pickle.dumps(plugin))
    assert type(copy) is type(plugin)
    assert repr(options(copy)) == repr(options(plugin))


CONFIGURED = {"accumulate_grad_batches": {0: 2, 1: 4}, "gradient_clip_val": 0.5, "max_epochs": 2, "min_steps": 1}


@pytest.mark.parametrize("how", [{}, CONFIGURED], ids=["default", "configured"])
def test_c81_a_trainer_pickles_and_trains_on(how):
    trainer = Trainer(**how)
    again = pickle.loads(pickle.dumps(trainer))
    assert [plugin.name for plugin in again.plugins] == [plugin.name for plugin in trainer.plugins]
    module, data = TinyClassifier(), classification_batches(4)
    again.fit(module, data, data)
    once_more = pickle.loads(pickle.dumps(again))
    assert once_more.loop is None
    assert once_more.fit(TinyClassifier(), data).global_step == again.global_step


def test_c81_modules_pickle_inside_a_run_without_it():
    class Inside(TinyClassifier):
        def training_step(self, batch, batch_idx):
            assert "_loop" not in self.__getstate__()
            return super().training_step(batch, batch_idx)

    Trainer(["-*"]).fit(Inside(), classification_batches(1))
    module = TinyClassifier()
    Trainer(["-*"]).fit(module, classification_batches(1))
    copy = pickle.loads(pickle.dumps(module))
    assert isinstance(copy, Module)
    assert copy._loop is None


class Copies(Plugin):
    """Sends the trainer somewhere in each batch."""

    name = "copies"

    @hookimpl
    def before_batch(self, loop):
        type(self).sent = pickle.dumps(loop.trainer)
        copy = pickle.loads(self.sent)
        self.seen.append(
            (copy.current_epoch, copy.batch_idx, copy.global_step, copy.training, copy.model, copy.max_epochs)
        )
        self.names = [plugin.name for plugin in copy.plugins] == [plugin.name for plugin in loop.plugins]


@pytest.mark.parametrize("options", [{}, {"async_save": True, "save_every": "1 batches"}, {"logger": "tensorboard"}])
def test_a_trainer_pickles_inside_a_run_and_the_copy_knows_how_far_it_is(tmp_path, options):
    Copies.seen = []
    trainer = Trainer([Copies, "signals", "interrupt"], max_epochs=2, default_root_dir=tmp_path, **options)
    trainer.fit(TinyClassifier(), classification_batches(2))
    assert Copies.seen == [(step // 2, step % 2, step, True, None, 2) for step in range(4)]
    assert trainer.plugin("copies").names
    assert pickle.loads(Copies.sent).fit(TinyClassifier(), classification_batches(1)).global_step == 2


class Told(Dataset):
    """Its samples say what a worker knows of the run."""

    def __init__(self, module, trainer):
        self.module, self.trainer = module, trainer

    def __len__(self):
        return 2

    def __getitem__(self, index):
        trainer = self.trainer
        known = (trainer.current_epoch, trainer.max_epochs, trainer.world_size, trainer.global_rank, trainer.training)
        return torch.tensor(known), self.module(torch.ones(4)).detach()


class Asks(TinyClassifier):
    def training_step(self, batch, batch_idx):
        self.told = batch
        return self.net(torch.ones(1, 4)).sum()


@pytest.mark.processes
def test_workers_that_are_spawned_are_told_of_the_run():
    module, trainer = Asks(), Trainer(["-checkpoint"], max_epochs=1)
    data = Told(TinyClassifier(), trainer)
    trainer.fit(module, DataLoader(data, num_workers=1, multiprocessing_context="spawn"))
    assert module.told[0].tolist() == [[0, 1, 1, 0, True]]
    torch.testing.assert_close(module.told[1], data[1][1][None])
