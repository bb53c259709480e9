"""A run waits for the device only where somebody asks for numbers."""

from __future__ import annotations

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches, count_syncs

READS = {
    "item": lambda x: x.item(),
    "__float__": float,
    "__int__": int,
    "__bool__": bool,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "__format__": lambda x: f"{x:.2f}",
    "equal": lambda x: torch.equal(x, x),
    "nonzero": torch.nonzero,
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "__index__": lambda x: [1, 2][x.int()],
}


@pytest.mark.parametrize("what", READS)
def test_every_kind_of_read_is_counted_once(what):
    x = torch.tensor(1.0)
    with count_syncs() as syncs:
        READS[what](x)
    assert [sync.what for sync in syncs] == [what]
    assert syncs[0].where.startswith("test_syncs.py:")
    assert (syncs[0].hook, syncs[0].plugin) == (None, None)


def test_what_needs_no_value_is_not_counted():
    x = torch.randn(3, requires_grad=True)
    with count_syncs() as syncs:
        loss = (x * 2).sum() / x.numel()
        loss.backward()
        torch.optim.Adam([x]).step()
        _ = x.shape, x.detach().to(torch.float64), torch.where(loss > 0, loss, 0.0)
    assert syncs == []


def test_the_reader_is_named():
    class Reads(Plugin):
        name = "reads"

        @hookimpl
        def after_batch(self, loop):
            self.look(loop.loss)

        def look(self, loss):
            return loss.item()

        @hookimpl(wrapper=True)
        def forward(self):
            output = yield
            float(output.detach())
            return output

    with count_syncs() as syncs:
        Trainer(["-*", Reads()]).fit(TinyClassifier(), classification_batches(1))
    inside = [sync for sync in syncs if sync.hook]
    assert [(sync.what, sync.hook, sync.plugin) for sync in inside] == [
        ("__float__", "forward", "reads"),
        ("item", "after_batch", "reads"),
    ]
    assert str(inside[1]).startswith("item in after_batch by plugin 'reads', at test_syncs.py:")


def test_a_read_of_the_users_own_is_no_plugins():
    class Reading(TinyClassifier):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            loss.item()
            return loss

    with count_syncs() as syncs:
        Trainer(["-*"]).fit(Reading(), classification_batches(1))
    assert [(sync.what, sync.hook, sync.plugin) for sync in syncs if sync.hook] == [("item", "forward", None)]


OPTIONS = {
    "bare": {},
    "accumulate and clip": {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1},
    "clip by value": {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
    "bounded": {"max_steps": 30, "max_epochs": 3, "min_epochs": 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_c57_no_batch_reads_anything(options, optimizer):
    counts = []
    for batches in (10, 30):
        module = TinyClassifier()
        module.configure_optimizers = lambda module=module: optimizer(module.parameters(), lr=0.1)
        with count_syncs() as syncs:
            Trainer(["-*"], **options).fit(module, classification_batches(batches))
        assert [str(sync) for sync in syncs if sync.hook] == []
        counts.append(len(syncs))
    assert counts[0] == counts[1]


def test_c57_weights_and_missing_losses_read_nothing():
    class Weighing(TinyClassifier):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return {"loss": loss, "weight": (batch[1] > 0).sum()} if batch_idx % 3 else None

    with count_syncs() as syncs:
        Trainer(["-*"], accumulate_grad_batches=4).fit(Weighing(), classification_batches(10))
    assert [str(sync) for sync in syncs if sync.hook] == []


def test_c57_a_pass_of_evaluation_reads_once():
    with count_syncs() as syncs:
        Trainer(["-*"]).validate(TinyClassifier(), classification_batches(20))
    assert [sync.what for sync in syncs] == ["tolist"]
