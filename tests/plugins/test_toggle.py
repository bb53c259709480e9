import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches


class Several(Module):
    """Parts in a row over one shared layer; optimizer i has part i, the shared layer is in all, one bias is frozen."""

    def __init__(self, count=2, fail_at=None):
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(3, 3)
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(count))
        self.parts[0].bias.requires_grad_(False)
        self.fail_at = fail_at
        self.trainable = []
        self.foreign = []

    def training_step(self, batch, batch_idx, optimizer_idx):
        if self.fail_at == (batch_idx, optimizer_idx):
            raise RuntimeError("in the middle")
        self.trainable.append((optimizer_idx, flags(self)))
        x = torch.tanh(self.shared(batch))
        for part in self.parts:
            x = torch.tanh(part(x))
        return (x * (optimizer_idx + 1)).mean()

    def configure_optimizers(self):
        return [
            torch.optim.SGD([*part.parameters(), *self.shared.parameters()], lr=0.1 * (index + 1))
            for index, part in enumerate(self.parts)
        ]


def flags(module):
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def batches(count=4):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 3, generator=generator) for _ in range(count)]


class Watch(Plugin):
    """After each batch and backward: which parameters require a gradient, which have one."""

    name = "watch"

    def validate(self):
        self.after_batches, self.foreign = [], []

    @hookimpl
    def after_batch(self, loop):
        self.after_batches.append(flags(loop.module))

    @hookimpl
    def after_backward(self, loop):
        if loop.batch_idx == 0:
            later = loop.module.parts[loop.optimizer_idx + 1 :]
            self.foreign += [parameter.grad for part in later for parameter in part.parameters()]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_c55_only_the_stepping_optimizer_has_gradients_and_every_flag_comes_back(count, accumulate):
    module, watch = Several(count), Watch()
    before = flags(module)
    assert "parts.0.bias" not in before
    Trainer(plugins=[watch], accumulate_grad_batches=accumulate).fit(module, batches())
    assert watch.after_batches == [before] * 4
    assert watch.foreign
    assert all(gradient is None for gradient in watch.foreign)
    assert len(module.trainable) == 4 * count
    for index, trainable in module.trainable:
        own = {f"parts.{index}.weight", f"parts.{index}.bias", "shared.weight", "shared.bias"}
        assert trainable == own - {"parts.0.bias"}
    assert flags(module) == before


def test_c55_flags_come_back_when_a_step_fails():
    module = Several(3, fail_at=(1, 2))
    before = flags(module)
    with pytest.raises(RuntimeError, match="in the middle"):
        Trainer(accumulate_grad_batches=2).fit(module, batches())
    assert flags(module) == before


def test_flags_come_back_when_backward_fails():
    class fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("in backward")

    class module_(Several):
        def training_step(self, batch, batch_idx, optimizer_idx):
            return fails.apply(super().training_step(batch, batch_idx, optimizer_idx))

    module = module_()
    before = flags(module)
    with pytest.raises(RuntimeError, match="in backward"):
        Trainer().fit(module, batches())
    assert flags(module) == before


def test_a_forward_that_is_run_again_in_backward_is_toggled_there_too():
    from torch.utils.checkpoint import checkpoint

    class module_(Several):
        def training_step(self, batch, batch_idx, optimizer_idx):
            self.trainable.append(flags(self))
            x = torch.tanh(self.shared(batch))
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=False)
            return (x * (optimizer_idx + 1)).mean()

    module, watch = module_(), Watch()
    Trainer(plugins=[watch]).fit(module, batches())
    assert all(gradient is None for gradient in watch.foreign)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_each_of_several_optimizers_has_the_gradient_of_its_own_windows_bit_for_bit(accumulate):
    data = batches(5)
    module = Several()
    Trainer(accumulate_grad_batches=accumulate).fit(module, data)

    plain = Several()
    optimizers = plain.configure_optimizers()
    held = [{} for _ in optimizers]
    for index, batch in enumerate(data):
        start = index // accumulate * accumulate
        size = min(accumulate, len(data) - start)
        for optimizer_idx, optimizer in enumerate(optimizers):
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            loss = plain.training_step(batch, index, optimizer_idx) / size
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                held[optimizer_idx][parameter] = held[optimizer_idx].get(parameter, 0) + gradient
            if index + 1 == start + size:
                for parameter in parameters:
                    parameter.grad = held[optimizer_idx][parameter]
                optimizer.step()
                optimizer.zero_grad()
                held[optimizer_idx].clear()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_shared_gradients_are_kept_apart_where_an_epoch_ends_before_its_windows():
    class stops(Plugin):
        name = "stops"

        @hookimpl
        def after_batch(self, loop):
            if loop.batch_idx == 2:
                loop.stop("enough")

    class module_(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def training_step(self, batch, optimizer_idx):
            return batch * self.w * (10 if optimizer_idx else 1)

        def configure_optimizers(self):
            return [torch.optim.SGD([self.w], lr=1.0), torch.optim.SGD([self.w], lr=1.0)]

    module = module_()
    result = Trainer(plugins=[stops()], accumulate_grad_batches=4).fit(module, probe_batches())
    assert result.global_step == 1
    assert module.w.item() == -2.0 - 20.0  # the mean of 1, 2, 3 for the one, ten times that for the other


def test_shared_parameters_state_brings_back_gradients_in_flight():
    from lightloop_plugins.shared_parameters import SharedParameters

    class saves(Plugin):
        name = "saves"
        after = ("shared_parameters",)

        @hookimpl
        def after_batch(self, loop):
            if loop.batch_idx == 0:
                (own,) = [plugin for plugin in loop.plugins if isinstance(plugin, SharedParameters)]
                self.kept = pickle.loads(pickle.dumps(own.state_dict()))

    saver = saves()
    Trainer(plugins=[saver], accumulate_grad_batches=2).fit(Several(), batches(2))
    assert saver.kept["holder"] == [0, 0]
    assert [(each["parameter"], each["optimizer"]) for each in saver.kept["aside"]] == [(0, 1), (1, 1)]

    class restores(Plugin):
        name = "restores"
        after = ("shared_parameters",)

        @hookimpl
        def before_fit(self, loop):
            (own,) = [plugin for plugin in loop.plugins if isinstance(plugin, SharedParameters)]
            own.load_state_dict(saver.kept)
            self.back = own.state_dict()

    restorer = restores()
    Trainer(plugins=[restorer]).fit(Several(), batches(1))
    assert restorer.back["holder"] == saver.kept["holder"]
    for one, other in zip(restorer.back["aside"], saver.kept["aside"], strict=True):
        assert torch.equal(one["gradient"], other["gradient"])


def test_without_it_the_loss_of_one_reaches_the_parameters_of_the_other():
    watch = Watch()
    Trainer(plugins=[watch], toggle_optimizers=False).fit(Several(), batches())
    assert any(gradient is not None for gradient in watch.foreign)


def test_it_bows_out_where_there_is_one_optimizer():
    class asks(Plugin):
        name = "asks"

        @hookimpl
        def before_epoch(self, loop):
            wrapped = {name: getattr(loop.hook, name).__name__ for name in ("forward", "backward")}
            self.direct = wrapped

    trainer = Trainer(plugins=[asks()])
    assert {"toggle", "shared_parameters"} <= {plugin.name for plugin in trainer.plugins}
    trainer.fit(Probe(), probe_batches(2))
    for name in ("forward", "backward", "zero_grad"):
        source = getattr(trainer.loop.hook, name)
        assert not hasattr(source, "__closure__") or source.__closure__ is None, f"{name} is still wrapped"


def test_plugins_pickle_after_a_run():
    trainer = Trainer()
    trainer.fit(Several(), batches(1))
    again = pickle.loads(pickle.dumps(trainer))
    assert again.fit(Several(), batches(1)).global_step == 1


def test_an_ordinary_gan_step_equals_a_plain_loop():
    class gan(Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.g, self.d = nn.Linear(2, 3), nn.Linear(3, 1)

        def training_step(self, batch, optimizer_idx):
            real, noise = batch
            if optimizer_idx == 0:
                return F.softplus(-self.d(self.g(noise))).mean()
            return (F.softplus(-self.d(real)) + F.softplus(self.d(self.g(noise)))).mean()

        def configure_optimizers(self):
            return [torch.optim.Adam(self.g.parameters(), 0.01), torch.optim.Adam(self.d.parameters(), 0.02)]

    data = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(5)]
    ours, plain = gan(), gan()
    result = Trainer().fit(ours, data)
    g, d = plain.configure_optimizers()
    for batch in data:
        for index, optimizer in enumerate((g, d)):
            plain.zero_grad()
            plain.training_step(batch, index).backward()
            optimizer.step()
    assert result.global_step == 5
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
