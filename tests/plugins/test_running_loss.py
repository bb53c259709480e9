import math
import pickle

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop_plugins.running_loss import RUNNING_LOSS

BARE = ["-*", "running_loss"]


class Losses(Probe):
    """Its loss is the batch's number, whatever the weight is."""

    def training_step(self, batch):
        return None if batch == 0 else batch + 0 * self.w


class Watch(Plugin):
    name, after = "watch", ("running_loss",)

    def validate(self):
        self.seen = []

    @hookimpl
    def after_batch(self, loop):
        value = loop.stash[RUNNING_LOSS]()
        self.seen.append(None if value is None else value.item())


def test_it_is_the_mean_of_the_undivided_losses_of_the_last_steps():
    watch = Watch()
    trainer = Trainer([*BARE, watch], running_loss_steps=3)
    trainer.fit(Losses(), probe_batches(5))
    assert watch.seen == [1.0, 1.5, 2.0, 3.0, 4.0]
    assert trainer.running_loss == 4.0


def test_a_step_counts_once_with_the_mean_of_its_window():
    watch = Watch()
    Trainer([*BARE, watch], accumulate_grad_batches=2).fit(Losses(), probe_batches(5))
    assert watch.seen == [None, 1.5, 1.5, 2.5, pytest.approx((1.5 + 3.5 + 5.0) / 3)]


def test_by_default_the_last_20():
    watch = Watch()
    Trainer([*BARE, watch]).fit(Losses(), probe_batches(30))
    assert watch.seen[-1] == sum(range(11, 31)) / 20


def test_what_makes_no_step_does_not_count():
    class Skip(Plugin):
        name = "skip"

        @hookimpl
        def before_step(self, loop):
            if not math.isfinite(loop.loss.detach()):
                loop.skip_step("not finite")

    watch = Watch()
    batches = [torch.tensor(number) for number in (1.0, 0.0, math.nan, 2.0)]
    Trainer([*BARE, Skip(), watch]).fit(Losses(), batches)
    assert watch.seen == [1.0, 1.0, 1.0, 1.5]


def test_it_reads_nothing(monkeypatch):
    trainer = Trainer(BARE)
    for name in ("item", "tolist", "cpu", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a value was read"))
    trainer.fit(Losses(), probe_batches(30))


def test_fitting_twice_starts_clean_and_it_pickles():
    trainer = Trainer(BARE)
    assert math.isnan(trainer.running_loss)
    trainer.fit(Losses(), probe_batches(5))
    trainer.fit(Losses(), probe_batches(1))
    assert trainer.running_loss == 1.0
    assert pickle.loads(pickle.dumps(trainer)).running_loss == 1.0


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="running_loss_steps"):
        Trainer(BARE, running_loss_steps=0)
