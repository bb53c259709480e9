import pickle

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop_plugins.checkpoint.weights.load import export_weights, load_weights
from lightloop_plugins.swa import SWA


class Normed(TinyClassifier):
    """With batch normalization, and a learning rate that falls each epoch."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))

    def configure_optimizers(self):
        self.optimizer = super().configure_optimizers()
        return [self.optimizer], [StepLR(self.optimizer, 1, 0.5)]


class Rates(Plugin):
    name, after = "rates", ("swa",)

    def validate(self):
        self.used = []

    @hookimpl
    def before_epoch(self, loop):
        self.used.append(loop.optimizers[0].param_groups[0]["lr"])


def made():
    torch.manual_seed(0)
    return Normed()


def trainer(*plugins, **options):
    return Trainer(["-*", "lr_schedule", *plugins], **options)


def plain_run(data, epochs, start, lr, anneal_epochs, anneal):
    """The recipe of the documentation of torch.optim.swa_utils."""
    module, rates = made(), []
    (optimizer,), (scheduler,) = module.configure_optimizers()
    averaged = AveragedModel(module)
    annealing = SWALR(optimizer, lr, anneal_epochs=anneal_epochs, anneal_strategy=anneal) if anneal_epochs else None
    for epoch in range(epochs):
        if epoch == start and annealing is None:
            annealing = SWALR(optimizer, lr, anneal_epochs=0)
        rates.append(optimizer.param_groups[0]["lr"])
        for x, y in data:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        if epoch >= start:
            averaged.update_parameters(module)
            annealing.step()
        else:
            scheduler.step()
    update_bn(data, averaged)
    return averaged.module, rates


@pytest.mark.parametrize(
    ("start", "anneal_epochs", "anneal"),
    [(2, 3, "cos"), (1, 2, "linear"), (0.5, 10, "cos"), (0, 3, "cos"), (2, 0, "cos")],
)
def test_equals_the_recipe_of_torch_bit_for_bit(start, anneal_epochs, anneal):
    data, rates = classification_batches(4), Rates()
    module = made()
    trainer(rates, SWA(start=start, lr=0.3, anneal_epochs=anneal_epochs, anneal=anneal), max_epochs=6).fit(module, data)
    first = int(start * 6) if isinstance(start, float) else start
    expected, used = plain_run(data, 6, first, 0.3, anneal_epochs, anneal)
    assert rates.used == used
    for (name, one), other in zip(module.state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_without_a_rate_the_schedules_go_on():
    rates, module = Rates(), Probe()
    module.configure_optimizers = lambda: ([o := torch.optim.SGD(module.parameters(), 1.0)], [StepLR(o, 1, 0.5)])
    swa = SWA(start=1)
    trainer(rates, swa, max_epochs=4).fit(module, [torch.tensor(1.0)])
    assert rates.used == [1.0, 0.5, 0.25, 0.125]
    assert swa.averaged == 3
    assert module.w.item() == pytest.approx(-(1.5 + 1.75 + 1.875) / 3)


def test_a_fraction_is_of_the_steps_of_the_training():
    swa = SWA(start=0.5)
    trainer(swa, max_epochs=8, max_steps=12).fit(Probe(), probe_batches(3))
    assert swa.averaged == 2
    with pytest.raises(ValueError, match=r"swa_start=0\.5 is a fraction of the training, whose length is not known"):
        trainer(SWA(start=0.5), max_epochs=2).fit(Probe(), iter(probe_batches(3)))


def test_an_epoch_that_was_broken_off_is_not_averaged():
    swa, module = SWA(start=0), Probe()
    trainer(swa, max_steps=5).fit(module, probe_batches(3))
    assert swa.averaged == 1
    assert module.w.item() == -6.0


def test_training_that_ends_before_the_start_says_so():
    module = Probe()
    with pytest.warns(UserWarning, match="swa_start=5: training ended before"):
        trainer(SWA(start=5), max_epochs=2).fit(module, probe_batches(1))
    assert module.w.item() == -2.0


def test_an_error_leaves_the_weights_as_they_were_trained():
    class fails(Probe):
        def training_step(self, batch):
            if self.loop.epoch == 2:
                raise RuntimeError("the test says so")
            return super().training_step(batch)

    module = fails()
    with pytest.raises(RuntimeError, match="the test says so"):
        trainer(SWA(start=0), max_epochs=4).fit(module, [torch.tensor(1.0)])
    assert module.w.item() == -2.0


def test_statistics_of_frozen_layers_and_random_numbers_are_left_alone():
    class logs(Normed):
        forwards = 0

        def training_step(self, batch, batch_idx):
            type(self).forwards += 1
            torch.rand(1)
            return super().training_step(batch, batch_idx)

    data, states, module = classification_batches(3), [], logs()
    module.net[1].eval()
    before = module.net[1].running_mean.clone()
    for update in (True, False):
        torch.manual_seed(0)
        trainer(SWA(start=0, update_bn=update)).fit(module, data)
        states.append(torch.get_rng_state())
    assert torch.equal(module.net[1].running_mean, before)
    assert logs.forwards == 6
    assert not module.net[1].training
    module.net[1].train()
    torch.manual_seed(0)
    trainer(SWA(start=0)).fit(module, data)
    assert logs.forwards == 12
    assert torch.equal(states[0], states[1])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert module.net[1].momentum == 0.1


def test_data_that_cannot_be_read_again_is_warned_of():
    module = made()
    with pytest.warns(UserWarning, match="cannot be read a second time"):
        trainer(SWA(start=0)).fit(module, iter(classification_batches(3)))
    assert module.net[1].running_mean.abs().sum() > 0


class Resume(Plugin):
    name, after = "resume", ("swa", "lr_schedule")

    def validate(self):
        self.saved, self.state = [], None

    @hookimpl
    def before_fit(self, loop):
        if self.state is not None:
            loop.module.load_state_dict(self.state["module"])
            loop.optimizers[0].load_state_dict(self.state["optimizer"])
            loop.epoch, loop.global_step, loop.optimizer_steps = self.state["at"]
            for plugin in loop.plugins:
                if plugin.name in self.state:
                    plugin.load_state_dict(self.state[plugin.name])

    @hookimpl
    def after_epoch(self, loop):
        state = {
            "module": loop.module.state_dict(),
            "optimizer": loop.optimizers[0].state_dict(),
            "at": (loop.epoch + 1, loop.global_step, loop.optimizer_steps),
            **{plugin.name: plugin.state_dict() for plugin in loop.plugins if plugin.name in ("swa", "lr_schedule")},
        }
        self.saved.append(pickle.loads(pickle.dumps(state)))


@pytest.mark.parametrize("epoch", range(5))
def test_resumed_after_any_epoch_it_ends_with_the_same_bits(epoch):
    data, save, resume = classification_batches(3), Resume(), Resume()
    whole, rates = made(), Rates()
    trainer(SWA(start=2, lr=0.3, anneal_epochs=2), save, rates, max_epochs=5).fit(whole, data)
    resume.state = save.saved[epoch]
    again = Rates()
    swa = SWA(start=2, lr=0.3, anneal_epochs=2)
    module = Normed()
    trainer(swa, resume, again, max_epochs=5).fit(module, data)
    assert again.used == rates.used[epoch + 1 :]
    assert swa.averaged == 3
    for (name, one), other in zip(module.state_dict().items(), whole.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_fitting_twice_starts_clean_and_pickles():
    swa = SWA(start=0, lr=0.5)
    twice = trainer(swa, max_epochs=2)
    for _ in range(2):
        module = Probe()
        twice.fit(module, [torch.tensor(1.0)])
        assert swa.averaged == 2
        again = pickle.loads(pickle.dumps(swa))
    assert torch.equal(again.average["w"], module.w)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"swa_start \(swa.start\) must be an epoch from 0, or a fraction"),
        ({"start": -1}, "swa_start"),
        ({"start": 1.0}, "swa_start"),
        ({"start": 1, "lr": -0.1}, r"swa_lr \(swa.lr\) must be a learning rate from 0; it is -0.1"),
        ({"start": 1, "anneal_epochs": -1}, "swa_anneal_epochs"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SWA(**options)


SAVED = ["-*", "lr_schedule", "checkpoint", "run_dir", "resume", "duration"]


def shuffled():
    x, y = (torch.cat(parts) for parts in zip(*classification_batches(5), strict=True))
    generator = torch.Generator().manual_seed(3)
    return DataLoader(TensorDataset(x, y), 8, shuffle=True, generator=generator)


def saved_run(root, **options):
    module = made()
    run = Trainer(SAVED, swa_start=1, default_root_dir=root, run_name="one", **{"max_epochs": 3, **options})
    run.fit(module, shuffled())
    return module, run


@pytest.mark.parametrize("options", [{}, {"max_steps": 13}], ids=["at the end of an epoch", "within an epoch"])
def test_the_last_checkpoint_has_the_average_with_its_statistics(tmp_path, options):
    module, run = saved_run(tmp_path, **options)
    loaded = Normed.load_from_checkpoint(run.plugin("checkpoint").last_path)
    target = tmp_path / "weights.safetensors"
    export_weights(run.plugin("checkpoint").last_path, target)
    exported = made()
    load_weights(exported, target)
    average = run.plugin("swa").average
    assert average
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
        assert torch.equal(exported.state_dict()[name], value), name
        assert name not in average or torch.equal(average[name], value), name


@pytest.mark.parametrize(("accumulate", "options"), [(1, {}), (2, {}), (1, {"max_steps": 13}), (2, {"max_steps": 8})])
def test_a_run_that_is_resumed_trains_on_with_what_was_trained(tmp_path, options, accumulate):
    more = {"accumulate_grad_batches": accumulate}
    whole, _ = saved_run(tmp_path / "whole", max_epochs=5, **more)
    saved_run(tmp_path / "parts", **options, **more)
    resumed, run = saved_run(tmp_path / "parts", max_epochs=5, resume="auto", **more)
    assert run.loop.total_batches == 25
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_a_run_that_had_ended_keeps_the_average(tmp_path):
    module, _ = saved_run(tmp_path)
    again = made()
    options = {"default_root_dir": tmp_path, "run_name": "one", "max_epochs": 3, "resume": "auto"}
    Trainer(SAVED, swa_start=1, **options).fit(again, shuffled())
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
