"""Trainers and every installed plugin of ours can be sent to another process, configured and after a run."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from lightloop import Module, Plugin, Trainer, discover
from lightloop.testing import TinyClassifier, classification_batches

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
