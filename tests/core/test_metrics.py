"""What is logged: weighted means, folded while it waits, fetched in one go."""

from __future__ import annotations

import math

import pytest
import torch

from lightloop import Metrics, Module, Trainer, World, evaluate, hookimpl
from lightloop.host.plugin import Plugin
from lightloop.metrics import FOLD, over_ranks
from lightloop.testing import Probe, TinyClassifier, classification_batches, count_syncs, probe_batches
from lightloop.toolkit import Running, fetch

KINDS = [float, torch.tensor, lambda x: torch.tensor([x])]


def running(reduce, pairs):
    one = Running(reduce)
    for value, weight in pairs:
        one.add(value, weight)
    return one


@pytest.mark.parametrize("kind", [float, lambda x: torch.tensor(float(x))], ids=["number", "tensor"])
@pytest.mark.parametrize(
    ("reduce", "expected"), [("mean", (1 * 3 + 2 * 1 + 6 * 4) / 8), ("sum", 9), ("min", 1), ("max", 6), ("last", 6)]
)
def test_each_way_to_reduce(reduce, expected, kind):
    one = running(reduce, [(kind(1), 3), (kind(2), 1), (kind(6), 4)])
    assert float(one.value()) == expected


@pytest.mark.parametrize("kind", [float, lambda x: torch.tensor(x, dtype=torch.float64)], ids=["number", "tensor"])
@pytest.mark.parametrize("reduce", ["mean", "sum", "min", "max", "last"])
def test_folding_keeps_memory_flat_and_the_value_right(reduce, kind):
    values = [math.sin(index) for index in range(3 * FOLD + 17)]
    weights = [1 + index % 5 for index in range(len(values))]
    one = running(reduce, [(kind(value), weight) for value, weight in zip(values, weights, strict=True)])
    assert len(one.pairs) < FOLD
    plain = {
        "mean": sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights),
        "sum": sum(values),
        "min": min(values),
        "max": max(values),
        "last": values[-1],
    }
    assert float(one.value()) == pytest.approx(plain[reduce], rel=1e-12)


def test_numbers_and_tensors_mix():
    one = running("mean", [(1.0, 1), (torch.tensor(2.0), torch.tensor(3)), (torch.tensor(4), 1)])
    assert float(one.value()) == pytest.approx(2.2, rel=1e-6)


def test_half_precision_is_summed_in_single():
    values = [1 + index / 128 for index in range(100)]
    for dtype in (torch.float16, torch.bfloat16):
        one = running("mean", [(torch.tensor(value, dtype=dtype), 300) for value in values])
        exact = sum(float(torch.tensor(value, dtype=dtype)) for value in values) / 100
        assert float(one.value()) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_mean_of_nothing_is_nan(kind):
    assert math.isnan(running("mean", [(kind(1.0), 0), (kind(2.0), 0)]).value())
    assert math.isnan(over_ranks({"x": running("mean", [(kind(1.0), 0), (kind(2.0), 0)])}, World())["x"])


def test_what_is_logged_is_what_it_was_then():
    metrics = Metrics()
    for value in (torch.tensor(1.0), torch.tensor([1.0])):
        metrics.log("x", value, step=True, epoch=False)
        value += 5
    assert metrics.take_step() == {"x": 1.0}

    class Adding(Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(()))

        def training_step(self, batch):
            loss = batch * self.w
            self.log("plain", loss, on_epoch=True)
            self.log("w", self.w, on_epoch=True)
            loss += 10
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    trainer = Trainer(["-*"])
    trainer.fit(Adding(), [torch.tensor(1.0), torch.tensor(2.0)])
    assert trainer.loop.epoch_metrics == {"plain": 0.5, "w": 0.5}


def test_step_and_epoch_names():
    metrics = Metrics()
    metrics.log("a", 1.0, step=True, epoch=True, bar=True)
    metrics.log("b", 2.0, step=False, epoch=True)
    metrics.log("b", 4.0, step=False, epoch=True, weight=3)
    metrics.log("a", 4.0, step=True, epoch=True, bar=True)
    assert (list(metrics.step), list(metrics.epoch), metrics.on_bar) == (["a_step"], ["a_epoch", "b"], {"a"})
    assert (metrics.latest, metrics.updates) == ({"a": 4.0, "a_step": 4.0}, {"a": 2, "a_step": 2})
    assert metrics.now() == {"a": 4.0, "a_step": 4.0, "a_epoch": 2.5, "b": 3.5}
    assert (metrics.monitored("a"), metrics.monitored("b")) == ((0, None), (0, None))
    assert metrics.take_epoch(World()) == {"a_epoch": 2.5, "b": 3.5}
    assert metrics.latest == metrics.now() == {"a": 2.5, "a_step": 4.0, "a_epoch": 2.5, "b": 3.5}
    assert (metrics.monitored("a"), metrics.monitored("b")) == ((1, 2.5), (1, 3.5))
    assert metrics.take_epoch(World()) == {}


def test_a_pass_that_does_not_count_changes_no_latest_value_at_its_end():
    metrics = Metrics()
    metrics.log("b", 2.0, step=False, epoch=True)
    metrics.log("b", 4.0, step=False, epoch=True)
    assert metrics.take_epoch(World(), keep=False) == {"b": 3.0}
    assert metrics.updates == metrics.latest == {}


@pytest.mark.parametrize("kind", KINDS)
def test_any_scalar_can_be_logged(kind):
    metrics = Metrics()
    metrics.log("x", kind(2.5), step=True, epoch=False)
    assert metrics.take_step() == {"x": 2.5}


def test_many_are_fetched_in_one_go():
    values = {f"t{index}": torch.tensor(float(index), dtype=torch.float16) for index in range(5)} | {"n": 3, "f": 0.5}
    with count_syncs() as syncs:
        numbers = fetch(values)
    assert [sync.what for sync in syncs] == ["tolist"]
    assert numbers == {"t0": 0.0, "t1": 1.0, "t2": 2.0, "t3": 3.0, "t4": 4.0, "n": 3.0, "f": 0.5}
    assert list(numbers) == list(values)
    with count_syncs() as syncs:
        over_ranks({name: running("mean", [(value, 2), (value, 3)]) for name, value in values.items()}, World())
    assert [sync.what for sync in syncs] == ["tolist"]


def test_fetching_keeps_every_bit_of_double_precision():
    value = 1 / 3
    assert fetch({"x": torch.tensor(value, dtype=torch.float64), "y": value}) == {"x": value, "y": value}


class TwoRanks(World):
    """The parts of two ranks, as a collective would give them."""

    size = 2

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, self.other]


def test_ranks_are_reduced_with_their_weights():
    here = {
        "mean": running("mean", [(1.0, 1), (3.0, 1)]),
        "sum": running("sum", [(2.0, 1)]),
        "min": running("min", [(2.0, 1)]),
        "max": running("max", [(2.0, 1)]),
        "last": running("last", [(2.0, 1)]),
    }
    there = (
        {"mean": 60.0, "sum": 5.0, "min": 1.0, "max": 5.0, "last": 7.0, "own": 12.0},
        {**dict.fromkeys(here, 6.0), "own": 6.0},
        {**{name: (name, name) for name in here}, "own": ("mean", "o")},
    )
    whole = {"mean": 64 / 8, "sum": 7.0, "min": 1.0, "max": 5.0, "last": 2.0, "own": 2.0}
    assert over_ranks(here, TwoRanks(there)) == whole
    metrics = Metrics()
    assert metrics.take_epoch(TwoRanks(there))["own"] == metrics.latest["own"] == metrics.latest["o"] == 2.0
    alone = over_ranks({}, TwoRanks(there))
    assert alone == {"mean": 10.0, "sum": 5.0, "min": 1.0, "max": 5.0, "last": 7.0, "own": 2.0}


def test_a_step_is_the_mean_of_its_window_and_an_epoch_that_of_its_samples():
    rows = []

    class Logging(TinyClassifier):
        def training_step(self, batch, batch_idx):
            self.log("n", float(batch_idx), on_step=True, on_epoch=True)
            return super().training_step(batch, batch_idx)

    class Watch(Plugin):
        name = "watch"

        @hookimpl
        def after_step(self, loop):
            rows.append(loop.metrics.take_step()["n_step"])

    data = classification_batches(3)
    data[2] = (data[2][0][:2], data[2][1][:2])
    trainer = Trainer(["-*", Watch()], accumulate_grad_batches=2)
    trainer.fit(Logging(), data)
    assert rows == [0.5, 2.0]
    assert trainer.loop.epoch_metrics["n_epoch"] == (0 * 8 + 1 * 8 + 2 * 2) / 18


def test_a_run_without_steps_keeps_memory_flat():
    class Logging(Probe):
        def training_step(self, batch):
            self.log("x", 1.0)

    trainer = Trainer(["-*"])
    with pytest.warns(UserWarning, match="nothing was trained"):
        trainer.fit(Logging(), probe_batches(2 * FOLD))
    assert len(trainer.loop.metrics.step["x"].pairs) <= FOLD


def test_a_pass_inside_a_pass_gives_the_outer_one_back():
    class Nested(TinyClassifier):
        def validation_step(self, batch, batch_idx):
            inner = evaluate(self.loop, "test", {None: classification_batches(2)})
            assert list(inner.metrics) == ["val_loss"]
            self.log("n", float(batch_idx))

        test_step = TinyClassifier.validation_step

    assert Trainer(["-*"]).validate(Nested(), classification_batches(3)) == {"n": 1.0}


def test_evaluation_weighs_by_samples_and_names_loaders():
    class Evaluated(TinyClassifier):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.log("n", float(batch_idx))
            self.log("loader", float(dataloader_idx))

    (x, y), (x2, y2) = classification_batches(2)
    trainer = Trainer(["-*"])
    assert trainer.validate(Evaluated(), [(x, y), (x2[:2], y2[:2])]) == {"n": 0.2, "loader": 0.0}
    several = {"a": [(x, y)], "b": [(x, y), (x, y)]}
    assert trainer.validate(Evaluated(), several) == {"n/a": 0.0, "loader/a": 0.0, "n/b": 0.5, "loader/b": 1.0}
    assert trainer.validate(Evaluated(), [iter(several["a"]), iter(several["b"])]) == {
        "n/0": 0.0,
        "loader/0": 0.0,
        "n/1": 0.5,
        "loader/1": 1.0,
    }


def test_a_copy_is_kept_unless_it_is_said_that_nobody_changes_the_value():
    metrics, value = Metrics(), torch.tensor(1.0, requires_grad=True) * 1
    metrics.log("copied", value, step=True, epoch=False)
    metrics.log("kept", value, step=True, epoch=False, copy=False)
    with torch.no_grad():
        value += 1
    assert metrics.take_step() == {"copied": 1.0, "kept": 2.0}
    assert not metrics.latest["kept"].requires_grad


LARGE = 67128463
"""A whole number that single precision does not have."""


@pytest.mark.parametrize("reduce", ["mean", "min", "max", "last"])
@pytest.mark.parametrize("weight", [1, 3, torch.tensor(3), torch.tensor(3.0)])
@pytest.mark.parametrize(
    "values",
    [
        [torch.tensor(LARGE)] * 3,
        [torch.tensor(LARGE), LARGE, torch.tensor(float(LARGE), dtype=torch.float64)],
        [LARGE, torch.tensor(LARGE, dtype=torch.int32)],
        [torch.tensor(LARGE)] * (FOLD + 3),
    ],
    ids=["tensors", "mixed", "narrow", "folded"],
)
def test_whole_numbers_are_exact(values, weight, reduce):
    one = running(reduce, [(value, weight) for value in values])
    beside = running("mean", [(torch.tensor(0.5), 1), (torch.tensor(0.25), 1)])
    assert float(one.value()) == LARGE
    assert over_ranks({"count": one, "loss": beside}, World()) == {"count": LARGE, "loss": 0.375}
    assert fetch({"count": torch.tensor(LARGE), "loss": torch.tensor(0.5), "n": LARGE}) == {
        "count": LARGE,
        "loss": 0.5,
        "n": LARGE,
    }


def test_whole_numbers_add_up_exactly_beside_others():
    assert float(running("sum", [(torch.tensor(LARGE), 1), (torch.tensor(0.5), 1), (2, 1)]).value()) == LARGE + 2.5


def test_whole_numbers_are_exact_over_an_epoch():
    class Counts(Probe):
        def training_step(self, batch):
            self.log("tokens", torch.tensor(LARGE), on_epoch=True)
            self.log("loss", batch * 0.5, on_epoch=True)
            return super().training_step(batch)

    assert Trainer(["-*"]).fit(Counts(), probe_batches(3)).metrics == {"tokens": LARGE, "loss": 1.0}
