"""Optimizers are fused where somebody asks for it and nobody chose otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightloop import Module, Trainer
from lightloop_plugins.fused import fuse

DATA = [(torch.randn(8, 4, generator=torch.Generator().manual_seed(i)), torch.arange(8) % 3) for i in range(6)]
KINDS = {
    "adagrad": (torch.optim.Adagrad, {}),
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
}


class Net(Module):
    def __init__(self, kind=torch.optim.SGD, **how):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)
        self.kind, self.how = kind, how

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return self.kind(self.parameters(), lr=0.1, **self.how)


def fit(net, data=DATA, **options):
    trainer = Trainer(["-*"], fused_optimizer=True, **options)
    trainer.fit(net, data)
    return trainer.loop.optimizers[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_the_users_own_fused_optimizer(kind):
    optimizer, how = KINDS[kind]
    net, by_hand = Net(optimizer, **how), Net(optimizer, fused=True, **how)
    assert [group["fused"] for group in fit(net).param_groups] == [True]
    own = by_hand.configure_optimizers()
    for batch in DATA:
        by_hand.training_step(batch, 0).backward()
        own.step()
        own.zero_grad()
    for one, other in zip(net.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("how", [{"fused": False}, {"foreach": True}, {"foreach": False}, {"differentiable": True}])
def test_what_the_user_chose_stays(how):
    optimizer = Net(**how).configure_optimizers()
    before = [dict(group) for group in optimizer.param_groups]
    assert not fuse(optimizer)
    assert optimizer.param_groups == before


class Own(torch.optim.SGD):
    pass


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, Own])
def test_what_cannot_be_fused_stays(kind):
    assert not fuse(Net(kind).configure_optimizers())


def test_parameters_for_which_there_is_no_kernel_stay():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2, device="meta"))], lr=0.1)
    assert not fuse(optimizer)
    assert optimizer.param_groups[0]["fused"] is None


def test_a_run_is_fused_from_where_it_goes_on(tmp_path):
    places = {"checkpoint_dir": tmp_path / "saved", "default_root_dir": tmp_path, "enable_progress_bar": False}
    first = Trainer(max_steps=3, **places)
    first.fit(net := Net(torch.optim.AdamW), DATA)
    assert first.loop.optimizers[0].param_groups[0]["fused"] is None
    whole = torch.optim.AdamW((by_hand := Net()).parameters(), lr=0.1, fused=True)
    by_hand.load_state_dict(net.state_dict())
    whole.load_state_dict(first.loop.optimizers[0].state_dict())
    whole.param_groups[0]["fused"] = True
    for batch in DATA[3:]:
        by_hand.training_step(batch, 0).backward()
        whole.step()
        whole.zero_grad()
    resumed = Trainer(max_steps=6, resume="auto", fused_optimizer=True, **places)
    resumed.fit(net := Net(torch.optim.AdamW), DATA)
    assert resumed.loop.optimizers[0].param_groups[0]["fused"] is True
    for one, other in zip(net.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, other)
