import itertools
import logging

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches


class Probed(Probe):
    def __init__(self):
        super().__init__()
        self.evaluated = []

    def validation_step(self, batch):
        self.evaluated.append(float(batch))

    test_step = predict_step = validation_step


class Counted:
    """Batches 1, 2, … that count how many were fetched; of known length or not."""

    def __init__(self, count):
        self.count, self.fetched = count, 0

    def __iter__(self):
        for batch in probe_batches(self.count):
            self.fetched += 1
            yield batch


class Sized(Counted):
    def __len__(self):
        return self.count


class Hooks(Plugin):
    name = "hooks"

    def validate(self):
        self.seen = []

    @hookimpl
    def before_evaluation(self, loop):
        self.seen.append("before_evaluation")

    @hookimpl
    def after_evaluation(self, loop):
        self.seen.append("after_evaluation")


@pytest.mark.parametrize(
    ("limit", "seen"),
    [
        (1, 1),
        (1.0, 10),
        (2, 2),
        (10, 10),
        (99, 10),
        (0.1, 1),
        (0.3, 3),
        (0.7, 7),
        (0.29, 2),
        (0.9999, 9),
        (0, 0),
        (0.0, 0),
    ],
)
def test_c41_the_type_decides(limit, seen):
    module, loader = Probed(), Sized(10)
    Trainer(["-*"], limit_train_batches=limit).fit(module, loader)
    assert module.seen == [float(batch) for batch in probe_batches(seen)]
    assert loader.fetched == seen
    data = Sized(10)
    for stage, name in (("validate", "val"), ("test", "test"), ("predict", "predict")):
        module = Probed()
        getattr(Trainer(["-*"], **{f"limit_{name}_batches": limit}), stage)(module, data)
        assert module.evaluated == [float(batch) for batch in probe_batches(seen)]


def test_fractions_are_exact():
    module = Probed()
    Trainer(["-*"], limit_train_batches=0.29).fit(module, probe_batches(100))
    assert len(module.seen) == 29  # 100 * 0.29 is 28.999999999999996


@pytest.mark.parametrize("name", ["train", "val", "test", "predict"])
@pytest.mark.parametrize("limit", [-1, -0.1, 1.2, 2.0, float("nan")])
def test_nonsense_is_refused_at_construction(name, limit):
    with pytest.raises(ValueError, match=f"limit_{name}_batches .* must be a whole number of batches from 0"):
        Trainer(["-*"], **{f"limit_{name}_batches": limit})


@pytest.mark.parametrize("value", [True, False])
def test_c41_a_bool_is_refused(value):
    with pytest.raises(TypeError, match=r"limit_train_batches .* must be int \| float"):
        Trainer(["-*", "limits"], limit_train_batches=value)


def test_c41_a_fraction_that_rounds_to_0_is_an_error():
    with pytest.raises(ValueError, match=r"limit_train_batches .* rounds to 0 batches of 10.*it is 0.05"):
        Trainer(["-*"], limit_train_batches=0.05).fit(Probed(), probe_batches(10))
    with pytest.raises(ValueError, match=r"limit_test_batches .* at least 0.5"):
        Trainer(["-*"], limit_test_batches=0.1).test(Probed(), probe_batches(2))


def test_c41_0_is_nothing_beside_another_option():
    hooks, module = Hooks(), Probed()
    Trainer(["-*", "validation", hooks], limit_val_batches=0, overfit_batches=1).fit(
        module, probe_batches(10), probe_batches(10)
    )
    assert (module.evaluated, hooks.seen, module.seen) == ([], [], [1.0])


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_0_is_no_evaluation_and_no_hooks(stage):
    hooks, module = Hooks(), Probed()
    limits = {f"limit_{name}_batches": 0 for name in ("val", "test", "predict")}
    assert not getattr(Trainer(["-*", hooks], **limits), stage)(module, probe_batches(3))
    assert (module.evaluated, hooks.seen) == ([], [])


def test_0_is_no_training_whatever_the_minimums():
    module = Probed()
    result = Trainer(["-*", "validation"], limit_train_batches=0, min_epochs=2, min_steps=3).fit(
        module, probe_batches(3), probe_batches(3)
    )
    assert (module.seen, module.evaluated, result.epoch, result.status) == ([], [], 0, "finished")


def test_one_batch_is_explained(caplog):
    with caplog.at_level(logging.INFO, logger="lightloop"):
        Trainer(["-*"], limit_train_batches=1).fit(Probed(), probe_batches(3))
    assert [record.message for record in caplog.records] == [
        "limit_train_batches=1 reads one batch; 1.0 would read all of them"
    ]


@pytest.mark.parametrize("kind", [Sized, Counted])
def test_c71_no_batch_is_fetched_beyond_the_limit(kind):
    module, loader = Probed(), kind(10)
    assert Trainer(["-*"], limit_train_batches=4, accumulate_grad_batches=3).fit(module, loader).global_step == 2
    assert module.seen == [1.0, 2.0, 3.0, 4.0]
    assert module.w.item() == -6.0  # (1 + 2 + 3) / 3 + 4
    assert loader.fetched == 4


def test_c71_what_is_left_of_a_shared_iterator_is_the_next_users():
    module, shared = Probed(), iter(probe_batches(10))
    Trainer(["-*"], limit_train_batches=4, max_epochs=2).fit(module, shared)
    assert module.seen == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert float(next(shared)) == 9.0


@pytest.mark.parametrize(("limit", "kind", "known"), [(4, Counted, 1), (4, Sized, 1), (12, Counted, 0), (12, Sized, 1)])
def test_the_last_batch_is_known_after_limits(limit, kind, known):
    last = []

    class Last(Probed):
        def training_step(self, batch):
            last.append(self.loop.is_last_batch)
            return super().training_step(batch)

    Trainer(["-*"], limit_train_batches=limit).fit(Last(), kind(10))
    assert last == [False] * (min(limit, 10) - 1) + [bool(known)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(1.0, 11.0))


def test_an_unsized_loader_takes_a_number_and_no_fraction():
    loader = DataLoader(Stream(), batch_size=None)
    module = Probed()
    Trainer(["-*"], limit_train_batches=3).fit(module, loader)
    assert module.seen == [1.0, 2.0, 3.0]
    Trainer(["-*"], limit_train_batches=1.0, limit_val_batches=1).fit(module, loader)
    with pytest.raises(ValueError, match=r"limit_train_batches .* does not know its length; it is 0.5"):
        Trainer(["-*"], limit_train_batches=0.5).fit(module, loader)


def test_each_of_several_loaders_is_limited():
    module = Probed()
    loaders = [DataLoader(torch.arange(float(size)), batch_size=None) for size in (2, 10)]
    Trainer(["-*"], limit_test_batches=0.5).test(module, loaders)
    assert module.evaluated == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_old_names(name):
    with pytest.warns(DeprecationWarning, match=f"'{name}_percent_check' is now called 'limit_{name}_batches'"):
        trainer = Trainer(["-*"], **{f"{name}_percent_check": 0.5})
    assert getattr(trainer.plugin("limits"), name) == 0.5
    with pytest.raises(TypeError, match="are one option"), pytest.warns(DeprecationWarning, match="is now called"):
        Trainer(["-*"], **{f"{name}_percent_check": 0.5, f"limit_{name}_batches": 0.5})


def test_limits_are_around_whatever_else_is_done_to_a_loader():
    lines = Trainer(limit_train_batches=2, overfit_batches=3, seed=1).explain().splitlines()
    after = lines[lines.index("prepare_loader") + 1 :]
    around = [line.split()[1] for line in itertools.takewhile(lambda line: "around the rest" in line, after)]
    assert [name for name in around if name in ("limits", "overfit", "seed")] == ["limits", "overfit", "seed"]
