"""Sharpness-aware optimizers as a package has them, against loops by hand: the same weights to the bit, the same evaluations."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD

from lightloop import Module, Trainer
from lightloop.testing.ranks import run_ranks, values_of

sam = pytest.importorskip("pytorch_optimizer")

BASE = {"base_optimizer": SGD, "lr": 0.1, "momentum": 0.5}
KINDS = {
    "SAM": lambda module: sam.SAM(module.parameters(), rho=0.5, **BASE),
    "ASAM": lambda module: sam.SAM(module.parameters(), rho=0.5, adaptive=True, **BASE),
    "LookSAM": lambda module: sam.LookSAM(module.parameters(), rho=0.5, k=2, **BASE),
    "FriendlySAM": lambda module: sam.FriendlySAM(module.parameters(), rho=0.5, **BASE),
    "WSAM": lambda module: sam.WSAM(module, module.parameters(), rho=0.5, **BASE),
    "BSAM": lambda module: sam.BSAM(module.parameters(), num_data=30, lr=0.1),
}
"""Those that evaluate once more in a step, twice, and in some steps alone."""
GATHERED = ("WSAM",)
"""Those that evaluate at the weights by themselves; for the others, that is done before their step."""

STOPS = ("WSAM",)
"""Those that switch statistics off and on at the module, which are then evaluated once more."""


class Net(Module):
    """With random numbers and statistics, of which an evaluation too many would be seen."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))
        self.kind, self.calls = kind, 0

    def loss(self, batch):
        self.calls += 1
        return self.net(batch).float().square().mean()

    def training_step(self, batch, loop):
        return self.loss(batch[loop.world.rank] if batch.ndim == 3 else batch)

    def configure_optimizers(self):
        if self.kind == "BSAM":
            torch.manual_seed(2)  # it draws
        return KINDS[self.kind](self)


class ByHand(Net):
    """Steps by itself, as the package's documentation does."""

    automatic_optimization = False

    def training_step(self, batch, loop, manual):
        optimizer = loop.optimizers[0]

        def closure():
            optimizer.zero_grad()
            loss = self.loss(batch)
            manual.backward(loss)
            return loss

        if self.kind not in GATHERED:
            closure()
        optimizer.step(closure)


def batches(count=5, *ranks):
    return list(torch.randn(count, *ranks, 6, 3, generator=torch.Generator().manual_seed(1)))


def trained_by_hand(module, data, accumulate=1, clip=None, around=nullcontext):
    """A loop as the package's documentation has it; each window is one evaluation."""
    optimizer = module.configure_optimizers()
    for start in range(0, len(data), accumulate):
        window = data[start : start + accumulate]

        def closure(window=window):
            optimizer.zero_grad()
            for batch in window:
                with around():
                    loss = module.loss(batch)
                (loss / len(window)).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            return loss

        if module.kind not in GATHERED:
            closure()
        optimizer.step(closure)
    return module.state_dict()


def assert_same(one, other, **tolerance):
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **(tolerance or {"rtol": 0, "atol": 0}))


def compare(module, kind, accumulate=1, clip=None, around=nullcontext, tolerance=None, **options):
    """Train ``module`` and, by hand, one of the same ``kind``."""
    theirs = Net(kind)
    if kind in STOPS:
        module.net[2] = theirs.net[2] = nn.Identity()
    torch.manual_seed(1)
    plugins = ["-*", "manual_optimization"] if isinstance(module, ByHand) else ["-*"]
    trainer = Trainer(plugins, accumulate_grad_batches=accumulate, gradient_clip_val=clip, **options)
    result = trainer.fit(module, batches())
    torch.manual_seed(1)
    expected = trained_by_hand(theirs, batches(), accumulate, clip, around)
    assert result.global_step == -(-5 // accumulate)
    if kind in STOPS:
        expected["net.1.num_batches_tracked"] = module.state_dict()["net.1.num_batches_tracked"]
    else:
        assert module.calls == theirs.calls
    assert_same(module.state_dict(), expected, **(tolerance or {}))


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_loop_by_hand_to_the_bit(kind, accumulate, clip):
    compare(Net(kind), kind, accumulate, clip)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_where_training_step_steps(kind, clip):
    compare(ByHand(kind), kind, 1, clip)


@pytest.mark.parametrize("net", [Net, ByHand])
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_in_mixed_precision(kind, net):
    around = partial(torch.autocast, "cpu", torch.bfloat16)
    compare(net(kind), kind, around=around, tolerance={"rtol": 2e-2, "atol": 2e-3}, precision="bf16-mixed")


def distributed(kind):
    module = Net(kind)
    module.net[1], module.net[2] = nn.Identity(), nn.Identity()
    Trainer(["-*"], strategy="ddp", accumulate_grad_batches=2).fit(module, batches(5, 2))
    return module.state_dict()


@pytest.mark.parametrize("kind", ["SAM", "BSAM"])
def test_two_processes_climb_by_the_mean_of_their_gradients(kind):
    class Both(Net):
        def loss(self, batch):
            return (super().loss(batch[0]) + super().loss(batch[1])) / 2

    first, second = values_of(run_ranks(distributed, 2, kind))
    theirs = Both(kind)
    theirs.net[1], theirs.net[2] = nn.Identity(), nn.Identity()
    assert_same(first, trained_by_hand(theirs, batches(5, 2), 2), rtol=0, atol=2e-6)
    assert_same(first, second)
