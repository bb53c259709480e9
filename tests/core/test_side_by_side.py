"""One loss for several optimizers: one forward, one backward, one window; to the bit what the loop by hand comes to."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.side_by_side import SideBySide
from lightloop.testing import classification_batches
from lightloop.toolkit import read_setup

EPOCHS = 2


class Net(Module):
    """Matrices under Muon, the rest under AdamW, each with a schedule of its own; counts its forwards."""

    def __init__(self, poison=()):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.forwards, self.poison = 0, poison

    def training_step(self, batch):
        self.forwards += 1
        loss = cross_entropy(self.net(batch[0]), batch[1])
        return loss * torch.inf if self.forwards - 1 in self.poison else loss

    def configure_optimizers(self):
        matrices = [each for each in self.parameters() if each.ndim == 2]
        rest = [each for each in self.parameters() if each.ndim != 2]
        optimizers = [torch.optim.Muon(matrices, lr=0.05), torch.optim.AdamW(rest, lr=0.02)]
        return [
            {
                "optimizer": optimizer,
                "lr_scheduler": {
                    "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9 - 0.1 * index),
                    "interval": interval,
                },
            }
            for index, (optimizer, interval) in enumerate(zip(optimizers, ("step", "epoch"), strict=True))
        ]


DATA = classification_batches(7)


def made(**options):
    torch.manual_seed(0)
    module = Net(**options)
    torch.manual_seed(1)
    return module


def by_hand(module, accumulate=1, clip=None, half=False, epochs=EPOCHS):
    """The loop that one would write; returns the norms of the gradients of each step."""
    parts = module.configure_optimizers()
    optimizers = [part["optimizer"] for part in parts]
    of_steps, of_epochs = (part["lr_scheduler"]["scheduler"] for part in parts)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3, enabled=half)
    norms = []
    for _ in range(epochs):
        for index, batch in enumerate(DATA):
            begin = index // accumulate * accumulate
            window = min(accumulate, len(DATA) - begin)
            with torch.autocast("cpu", torch.float16) if half else contextlib.nullcontext():
                loss = module.training_step(batch)
            scaler.scale(loss / window).backward()
            if index + 1 - begin < window:
                continue
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            norm = torch.nn.utils.get_total_norm([each.grad for each in module.parameters()])
            norms.append(norm)
            if clip is not None and norm.isfinite():
                torch.nn.utils.clip_grads_with_norm_(module.parameters(), clip, norm)
            if norm.isfinite():
                for optimizer in optimizers:
                    scaler.step(optimizer)
                of_steps.step()
            scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()
        of_epochs.step()
    return norms, optimizers


def assert_same(module, optimizers, other, others):
    torch.testing.assert_close(module.state_dict(), other.state_dict(), rtol=0, atol=0)
    for mine, theirs in zip(optimizers, others, strict=True):
        mine, theirs = mine.state_dict(), theirs.state_dict()
        assert mine["param_groups"] == theirs["param_groups"]
        torch.testing.assert_close(mine["state"], theirs["state"], rtol=0, atol=0)


class Norms(Plugin):
    name = "norms"

    def validate(self):
        self.seen = []

    @hookimpl
    def before_step(self, loop):
        self.seen.append(loop.grad_norm().clone())


@pytest.mark.filterwarnings(
    "ignore:Detected call of:UserWarning"
)  # torch's, of the loop by hand whose first step is skipped
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_is_the_loop_by_hand_to_the_bit(accumulate, clip, half):
    module, other, norms = made(), made(), Norms()
    trainer = Trainer(
        ["-*", "lr_schedule", "toggle", "optimizer_frequencies", norms],
        max_epochs=EPOCHS,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
        **({"precision": "16-mixed", "precision_init_scale": 2.0**20, "precision_growth_interval": 3} if half else {}),
    )
    result = trainer.fit(module, DATA)
    torch.manual_seed(1)
    expected, optimizers = by_hand(other, accumulate, clip, half)
    torch.testing.assert_close(norms.seen, expected, rtol=0, atol=0, equal_nan=True)
    assert_same(module, trainer.optimizers, other, optimizers)
    steps = sum(bool(norm.isfinite()) for norm in expected)
    loop = trainer.loop
    assert (module.forwards, module.net[1].num_batches_tracked.item()) == (14, 14)
    assert (result.global_step, loop.optimizer_steps, len(loop.windows)) == (steps, [steps, steps], 1)
    assert loop.skipped_steps == len(expected) - steps
    assert bool(loop.skipped_steps) == half, "a scale of 2 ** 20 overflows at first"
    assert all(each.grad is None for each in module.parameters())


def test_a_step_that_is_skipped_is_skipped_for_all_of_them():
    module = made(poison=(1, 8))
    trainer = Trainer(["-*", "lr_schedule"], max_epochs=EPOCHS, nonfinite="skip_step", accumulate_grad_batches=2)
    with pytest.warns(UserWarning, match="loss is inf"):
        result = trainer.fit(module, DATA)
    assert (result.global_step, trainer.loop.skipped_steps, trainer.loop.optimizer_steps) == (6, 2, [6, 6])
    assert [optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers] == pytest.approx(
        [0.05 * 0.9**6, 0.02 * 0.8**2]
    )
    for optimizer in trainer.optimizers:
        assert {int(kept["step"]) for kept in optimizer.state.values() if "step" in kept} <= {6}


def test_what_is_logged_has_no_numbers_of_optimizers_but_for_rates():
    trainer = Trainer(["-*"], gradient_clip_val=0.5, track_grad_norm=2, log_lr="step", running_loss_steps=2)
    metrics = trainer.fit(made(), DATA).metrics
    assert {"grad_norm", "grad_norm_clipped", "grad_2.0_norm_total", "grad_2.0_norm_net.0.weight", "lr/0", "lr/1"} <= {
        *metrics
    }
    assert not [name for name in metrics if "optimizer_" in name]


@pytest.mark.parametrize("stop", [2, 4, 9])
def test_a_run_that_is_resumed_comes_to_the_same_bits(tmp_path, stop):
    class StopAt(Plugin):
        name = "stop_at"
        before = ("checkpoint",)

        def __init__(self, batches):
            super().__init__()
            self.batches = batches

        @hookimpl
        def after_batch(self, loop):
            if loop.total_batches + 1 == self.batches:
                loop.interrupt("enough")

    def fit(batches, **options):
        module = made()
        trainer = Trainer(
            ["-*", "checkpoint", "run_dir", "lr_schedule", StopAt(batches)],
            max_epochs=EPOCHS,
            accumulate_grad_batches=3,
            **options,
        )
        trainer.fit(module, DATA)
        return module, trainer.optimizers

    fit(stop, checkpoint_dir=tmp_path / "parts")
    module, optimizers = fit(None, checkpoint_dir=tmp_path / "parts", resume="auto")
    assert_same(module, optimizers, *fit(None, checkpoint_dir=tmp_path / "whole"))
    assert module.forwards == 14 - stop


class Asks(Net):
    def training_step(self, batch, optimizer_idx):
        return super().training_step(batch)


class Turns(Net):
    def configure_optimizers(self):
        return [{**part, "frequency": 1} for part in super().configure_optimizers()]


class Manual(Net):
    automatic_optimization = False

    def training_step(self, batch):
        loss = super().training_step(batch)
        loss.backward()
        for optimizer in self.trainer.optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("kind", "forwards", "windows", "steps"),
    [(Net, 7, 1, [7, 7]), (Asks, 14, 2, [7, 7]), (Turns, 7, 2, [4, 3]), (Manual, 7, 2, [7, 7])],
)
def test_where_it_is_one_loss_and_where_not(kind, forwards, windows, steps):
    module = kind()
    trainer = Trainer(["-*", "optimizer_frequencies", "manual_optimization", "lr_schedule", "toggle"])
    trainer.fit(module, DATA)
    assert (module.forwards, len(trainer.loop.windows), trainer.loop.optimizer_steps) == (forwards, windows, steps)


def test_frequencies_by_option_are_turns_as_well():
    module = Net()
    trainer = Trainer(["-*"], optimizer_frequencies=[2, 1])
    trainer.fit(module, DATA)
    assert (module.forwards, trainer.loop.optimizer_steps) == (7, [5, 2])


def test_a_parameter_of_two_optimizers_is_stepped_by_both_with_one_gradient_that_counts_once():
    class Both(Module):
        def __init__(self):
            super().__init__()
            self.w, self.v = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

        def training_step(self, batch):
            return self.w * 3 * batch + self.v * 4 * batch

        def configure_optimizers(self):
            return [torch.optim.SGD([self.w], lr=1.0), torch.optim.SGD([self.v, self.w], lr=0.5)]

    module = Both()
    result = Trainer(["-*", "shared_parameters"], gradient_clip_val=2.5, accumulate_grad_batches=2).fit(
        module, [torch.tensor(0.5), torch.tensor(1.5)]
    )
    assert result.metrics["grad_norm"] == 5.0
    assert (module.w.item(), module.v.item()) == pytest.approx((-1.5 * 1.5, -0.5 * 2.0), rel=1e-6)


def test_an_optimizer_that_needs_a_closure_has_a_loss_of_its_own():
    class Lbfgs(Net):
        def configure_optimizers(self):
            first, second = self.net[0].parameters(), self.net[4].parameters()
            return [torch.optim.LBFGS(first, max_iter=1), torch.optim.SGD(second, lr=0.1)]

    trainer = Trainer(["-*"])
    trainer.fit(Lbfgs(), DATA[:2])
    assert (len(trainer.loop.windows), trainer.loop.optimizer_steps) == (2, [2, 2])


def test_the_modules_own_hooks_see_all_of_them_as_one():
    class Warm(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx):
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            optimizer.step()
            self.seen = isinstance(optimizer, torch.optim.Optimizer), optimizer_idx, len(optimizer.param_groups)
            assert len(optimizer.state) == 6

        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            optimizer.zero_grad()

    module = Warm()
    trainer = Trainer(["-*", "module_hooks"])
    assert trainer.fit(module, DATA).global_step == 7
    assert module.seen == (True, 0, 2)
    assert [optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers] == [0.01, 0.01]
    assert all(each.grad is None for each in module.parameters())


def test_a_copy_changes_nothing_for_the_others():
    module = made()
    optimizers = SideBySide(read_setup(module.configure_optimizers(), module).optimizers)
    copied = pickle.loads(pickle.dumps(optimizers))
    assert repr(copied) == repr(copy.deepcopy(optimizers)) == repr(optimizers)
    assert Trainer(["-*"]).fit(module, DATA).global_step == len(DATA)
