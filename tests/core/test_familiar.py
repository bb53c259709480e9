import pickle
from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch

from lightloop import Module, Plugin, Trainer, hookimpl, option
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches


class Look(Plugin):
    """Writes down what the trainer says at some of the hooks."""

    name = "look"
    tags = ("looker",)
    exposes: ClassVar[Mapping[str, str]] = {"seen": "rows"}

    depth: int = option(3, "How deep to look.", flag="look_depth")

    def validate(self):
        self.rows = []

    @hookimpl
    def after_batch(self, loop):
        trainer = loop.trainer
        self.rows.append(
            {
                "progress": (trainer.current_epoch, trainer.batch_idx, trainer.total_batch_idx, trainer.global_step),
                "last": trainer.is_last_batch,
                "loss": None if trainer.loss is None else (trainer.loss.item(), trainer.loss.requires_grad),
                "stage": stage_of(trainer),
            }
        )

    @hookimpl
    def after_evaluation_batch(self, loop):
        self.rows.append(stage_of(loop.trainer))


def stage_of(trainer):
    names = ("training", "validating", "testing", "predicting", "sanity_checking")
    return [name for name in names if getattr(trainer, name)]


def trainer(**options):
    return Trainer(plugins=["-*", Look()], **options)


def test_before_the_first_run_it_is_what_a_run_begins_with():
    user = trainer()
    assert (user.global_step, user.current_epoch, user.batch_idx, user.total_batch_idx) == (0, 0, 0, 0)
    assert (user.num_training_batches, user.is_last_batch, user.interrupted, user.should_stop) == (
        0,
        False,
        False,
        False,
    )
    assert (user.model, user.train_dataloader, user.loss, user.optimizers, user.optimizer_frequencies) == (
        None,
        None,
        None,
        [],
        [],
    )
    assert (user.lr_schedulers, user.lr_scheduler_configs) == ([], [])
    assert (user.callback_metrics, user.logged_metrics, user.progress_bar_metrics) == ({}, {}, {})
    assert (user.global_rank, user.local_rank, user.world_size, user.is_global_zero, user.on_gpu) == (
        0,
        0,
        1,
        True,
        False,
    )
    assert (stage_of(user), user.disable_validation) == ([], True)
    with pytest.raises(RuntimeError, match="while a run lasts"):
        user.should_stop = True


def test_during_a_fit_it_says_how_far_it_is():
    user, module = trainer(), Probe()
    user.fit(module, probe_batches(2))
    assert user.seen == [
        {"progress": (0, 0, 0, 1), "last": False, "loss": (0.0, False), "stage": ["training"]},
        {"progress": (0, 1, 1, 2), "last": True, "loss": (-2.0, False), "stage": ["training"]},
    ]
    assert (user.current_epoch, user.total_batch_idx, user.num_training_batches) == (1, 2, 2)
    assert user.estimated_stepping_batches == 2
    assert (user.model, stage_of(user), len(user.optimizers)) == (module, [], 1)
    assert user.train_dataloader is user.loop.train_loader


def test_an_unsized_loader_has_infinitely_many_batches():
    user = trainer()
    user.fit(Probe(), iter(probe_batches(2)))
    assert user.num_training_batches == float("inf")


@pytest.mark.parametrize(
    ("stage", "flag"), [("validate", "validating"), ("test", "testing"), ("predict", "predicting")]
)
def test_the_stage_is_known(stage, flag):
    class Evaluated(TinyClassifier):
        test_step = TinyClassifier.validation_step

        def predict_step(self, batch):
            return self(batch[0])

    user = trainer()
    getattr(user, stage)(Evaluated(), classification_batches(1))
    assert user.seen == [[flag]]


def test_schedulers_in_both_forms():
    class Scheduled(Probe):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]

    user = trainer()
    user.fit(Scheduled(), probe_batches(1))
    (config,) = user.lr_scheduler_configs
    assert (config.interval, config.frequency, config.monitor) == ("step", 1, None)
    assert user.lr_schedulers[0]["scheduler"] is config.scheduler


def test_metrics_are_numbers_and_those_of_an_epoch_means_so_far():
    class Logs(Probe):
        def training_step(self, batch):
            self.log("x", batch, prog_bar=True)
            self.log("mean", batch, on_epoch=True)
            means.append(self.trainer.callback_metrics["mean"])
            return super().training_step(batch)

    means, user = [], trainer()
    user.fit(Logs(), probe_batches(3))
    assert means == [1.0, 1.5, 2.0]
    assert user.callback_metrics == user.logged_metrics == {"x": 3.0, "mean": 2.0}
    assert user.progress_bar_metrics == {"x": 3.0}


def test_stopping_by_attribute_and_taking_it_back():
    class Wavers(Probe):
        def training_step(self, batch):
            self.trainer.should_stop = True
            self.trainer.should_stop = batch == 2
            return super().training_step(batch)

    user, module = trainer(), Wavers()
    assert user.fit(module, probe_batches(4)).status == "stopped"
    assert (module.seen, user.should_stop) == ([1.0, 2.0], True)


def test_options_offers_and_kinds_are_attributes():
    user = trainer()
    assert (user.look_depth, user.looker, user.plugin("look"), user.plugin("none")) == (
        3,
        user.plugins[0],
        user.looker,
        None,
    )
    assert user.seen is user.looker.rows
    with pytest.raises(AttributeError, match=r"Trainer has no attribute 'lok_depth'. Did you mean 'look_depth'"):
        user.lok_depth
    with pytest.raises(AttributeError, match=r"Trainer\(look_depth=...\), or for one run, fit\(..., look_depth=...\)"):
        user.look_depth = 4
    user.mine = 1
    assert user.mine == 1


def test_only_a_run_gives_a_module_its_trainer():
    with pytest.raises(RuntimeError, match="is not being trained or evaluated"):
        Probe().trainer
    assert isinstance(Module(), torch.nn.Module)


def test_it_pickles_after_its_attributes_were_read():
    user = Trainer(plugins=["-*"])
    with pytest.raises(AttributeError):
        user.nothing_of_the_kind
    assert pickle.loads(pickle.dumps(user)).global_step == 0


def test_a_kind_of_which_no_plugin_is_live_is_none():
    trainer = Trainer(logger=False)
    assert trainer.logger is None
    assert trainer.accelerator is not None
    with pytest.raises(AttributeError, match="no attribute 'loger'"):
        trainer.loger
