"""Runs that were once resumed otherwise than they went on, each as its user saw it."""

import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl, option
from lightloop.testing import Probe, probe_batches
from lightloop.testing.resuming import Resuming
from tests.resuming.rig import QUIET


class Halt(Plugin):
    """Ends the run after so many batches in all."""

    name = "halt"
    after_batches: int = option(-1, "How many.")

    @hookimpl
    def after_batch(self, loop):
        if loop.total_batches + 1 == self.after_batches:
            loop.interrupt("half of it is done")


def fit(folder, module, data=None, *, halt=None, resume=None, **options):
    trainer = Trainer(
        [*QUIET, Halt(halt or -1)], default_root_dir=str(folder), run_version="run", resume=resume, **options
    )
    trainer.fit(module, data)
    return trainer


class Curriculum(Module):
    """Makes the data of each epoch anew: 0 to 3, then 10 to 13."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.seen = []

    def train_dataloader(self):
        return [torch.tensor(float(10 * self.current_epoch + number)) for number in range(2 + 2 * self.current_epoch)]

    def training_step(self, batch):
        self.seen.append(int(batch))
        return batch * self.w

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("every", "rest"), [(1, [11, 12, 13]), (2, [1])])
def test_an_epochs_own_data_are_asked_for_again_when_a_run_is_resumed_inside_it(every, rest, tmp_path):
    options = {"reload_dataloaders_every_n_epochs": every, "max_epochs": 2}
    fit(tmp_path, Curriculum(), halt=3, **options)
    module = Curriculum()
    fit(tmp_path, module, resume="auto", **options)
    assert module.seen == rest


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.torture), 2, pytest.param(3, marks=pytest.mark.torture)]
)
@pytest.mark.parametrize("often", [pytest.param(1.0, marks=pytest.mark.torture), 0.5])
def test_a_curriculum_is_resumed_exactly_from_every_boundary(every, often, tmp_path):
    class Validated(Curriculum):
        def val_dataloader(self):
            return [torch.tensor(float(self.current_epoch))]

        def validation_step(self, batch):
            self.log("val_loss", batch * self.w.detach())

    def trainer(witness, placed):
        options = {"reload_dataloaders_every_n_epochs": every, "val_check_interval": often, "max_epochs": 4}
        return Trainer([witness, *QUIET], **options, **placed)

    report = Resuming(tmp_path, trainer, Validated, lambda: ()).prove(None if every == 1 else 6)
    assert report.partings == [], str(report)


class Hidden(Probe):
    """Carries a state through an epoch, which begins at nothing."""

    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(()))
        self.begun = []

    def on_train_epoch_start(self):
        self.begun.append(self.current_epoch)
        self.hidden.zero_()

    def training_step(self, batch):
        self.hidden += batch
        return self.hidden.clone() * self.w


def test_an_epoch_that_a_resumed_run_goes_on_with_does_not_begin_again(tmp_path):
    whole = Hidden()
    fit(tmp_path / "whole", whole, probe_batches(4))
    fit(tmp_path / "part", Hidden(), probe_batches(4), halt=2)
    rest = Hidden()
    fit(tmp_path / "part", rest, probe_batches(4), resume="auto", max_epochs=2)
    assert whole.begun == [0]
    assert rest.begun == [1]
    rest = Hidden()
    fit(tmp_path / "again", Hidden(), probe_batches(4), halt=2)
    fit(tmp_path / "again", rest, probe_batches(4), resume="auto")
    assert rest.w.item() == whole.w.item() == -20.0


class Scored(Probe):
    def training_step(self, batch):
        self.log("one", 10.0 - batch, on_step=False, on_epoch=True)
        self.log("two", batch, on_step=False, on_epoch=True)
        return super().training_step(batch)


@pytest.mark.parametrize("then", [None, "two"])
def test_a_run_may_go_on_with_another_monitor_or_none_and_says_so(then, tmp_path):
    fit(tmp_path, Scored(), probe_batches(2), max_epochs=1, monitor="one")
    with pytest.warns(UserWarning, match="checkpoint.monitor: then 'one'"):
        trainer = fit(tmp_path, Scored(), probe_batches(2), resume="auto", max_epochs=3, monitor=then)
    assert trainer.loop.epoch == 3
    assert trainer.plugin("checkpoint")._trigger._best == (None if then is None else -1.5)


def test_a_run_that_goes_on_with_the_same_monitor_says_nothing(tmp_path):
    fit(tmp_path, Scored(), probe_batches(2), max_epochs=1, monitor="one")
    trainer = fit(tmp_path, Scored(), probe_batches(2), resume="auto", max_epochs=3, monitor="one")
    assert trainer.plugin("checkpoint")._trigger._best == -8.5


def test_what_stops_early_may_watch_another_metric_after_a_resume(tmp_path):
    options = {"early_stop_callback": True, "early_stopping_patience": 1}
    fit(tmp_path, Scored(), probe_batches(2), max_epochs=1, early_stopping_monitor="one", **options)
    with pytest.warns(UserWarning, match="early_stopping:one"):
        trainer = fit(
            tmp_path,
            Scored(),
            probe_batches(2),
            resume="auto",
            max_epochs=4,
            early_stopping_monitor="two",
            **options,
        )
    assert trainer.plugin("early_stopping").best_score == 1.5
    assert trainer.loop.epoch == 3
