import math
import pickle

import pytest
import torch
from torch import nn

from lightloop import Module, Trainer
from lightloop.testing import Probe, probe_batches


def with_nan_at(index, count=5):
    batches = probe_batches(count)
    batches[index] = torch.tensor(math.nan)
    return batches


class Watched(Probe):
    """A Probe that logs its loss."""

    def training_step(self, batch):
        loss = super().training_step(batch)
        self.log("loss", loss)
        return loss


@pytest.mark.parametrize("accumulate", [1, 2])
def test_c51_ends_before_the_step_and_names_the_batch(accumulate):
    module = Watched()
    trainer = Trainer(["-*"], terminate_on_nan=True, accumulate_grad_batches=accumulate)
    with pytest.raises(ValueError, match="the loss is nan at epoch 0, batch 2 \\(epochs and batches counted from 0\\)"):
        trainer.fit(module, with_nan_at(2))
    assert module.w.item() == {1: -3.0, 2: -1.5}[accumulate]
    assert trainer.loop.global_step == {1: 2, 2: 1}[accumulate]
    assert trainer.loop.status == "failed"


@pytest.mark.parametrize("accumulate", [1, 2])
def test_c51_off_nan_is_logged_as_nan(accumulate):
    module = Watched()
    result = Trainer(["-*"], accumulate_grad_batches=accumulate).fit(module, with_nan_at(2, 3))
    assert math.isnan(result.metrics["loss"])
    assert module.w.isnan()


class Bad(Module):
    """``good`` learns from the batch; the gradient of ``bad`` is infinite where the batch is negative."""

    def __init__(self):
        super().__init__()
        self.good, self.bad = nn.Parameter(torch.zeros(())), nn.Parameter(torch.ones(()))
        self.lr = 1.0

    def training_step(self, batch):
        return self.good * batch + ((self.bad * 0).sqrt() if batch < 0 else self.bad * 0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


@pytest.mark.parametrize("checks", [("loss", "grad", "param"), ["grad"]])
def test_c51_a_gradient_is_named_and_the_step_not_taken(checks):
    module = Bad()
    batches = [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(-1.0)]
    with pytest.raises(ValueError, match="the gradient of bad has NaN in it at epoch 0, batch 2"):
        Trainer(["-*"], terminate_on_nan=True, terminate_on_nan_checks=checks).fit(module, batches)
    assert (module.good.item(), module.bad.item()) == (-3.0, 1.0)


def test_a_gradient_on_the_very_last_batch_is_found():
    with pytest.raises(ValueError, match="gradient of bad"):
        Trainer(["-*"], terminate_on_nan=True, max_epochs=1).fit(Bad(), [torch.tensor(-1.0)])


def test_parameters_are_checked_after_the_step():
    module = Bad()
    module.lr = 1e38
    with pytest.raises(ValueError, match="after the step, the parameter good has infinity in it at epoch 0, batch 1"):
        Trainer(["-*"], terminate_on_nan=True).fit(module, [torch.tensor(3.0), torch.tensor(1.0)])
    module = Bad()
    module.lr = 1e38
    Trainer(["-*"], terminate_on_nan=True, terminate_on_nan_checks=["loss", "grad"]).fit(module, [torch.tensor(10.0)])
    assert module.good.isinf()


def test_finite_values_whose_norm_overflows_are_no_error():
    module = Bad()
    module.lr = 1.0
    Trainer(["-*"], terminate_on_nan=True).fit(module, [torch.tensor(3e38)])
    assert module.good.item() == pytest.approx(-3e38)


def test_where_nothing_is_wrong_nothing_changes():
    module = Probe()
    assert Trainer(["-*"], terminate_on_nan=True).fit(module, probe_batches()).global_step == 10
    assert module.w.item() == -55.0


@pytest.mark.parametrize("checks", [(), "loss", ["losses"]])
def test_nonsense_is_refused_at_construction(checks):
    with pytest.raises(ValueError, match="terminate_on_nan_checks"):
        Trainer(terminate_on_nan=True, terminate_on_nan_checks=checks)


def test_it_pickles_after_an_error():
    trainer = Trainer(["-*"], terminate_on_nan=True)
    with pytest.raises(ValueError, match="the loss is nan"):
        trainer.fit(Probe(), with_nan_at(0))
    module = Probe()
    pickle.loads(pickle.dumps(trainer)).fit(module, probe_batches())
    assert module.w.item() == -55.0
