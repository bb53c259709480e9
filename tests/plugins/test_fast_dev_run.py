import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop.toolkit import ROLES

KEPT = ("averages", "guards", "interrupts", "schedules", "searches", "watches", "writes")
"""The roles that have a part in a run on a few batches."""


class Probed(Probe):
    def __init__(self):
        super().__init__()
        self.evaluated = []

    def validation_step(self, batch):
        assert not self.loop.evaluation.sanity
        self.evaluated.append(float(batch))

    test_step = predict_step = validation_step


class Writes(Plugin):
    name = "writes"
    tags = ("logger",)

    @hookimpl
    def log_metrics(self, metrics):
        raise AssertionError


@pytest.mark.parametrize(("value", "count"), [(True, 1), (1, 1), (3, 3), (99, 5)])
def test_so_many_batches_of_everything(value, count):
    module = Probed()
    result = Trainer(["-*", "validation"], fast_dev_run=value).fit(module, probe_batches(5), probe_batches(5))
    seen = [float(batch) for batch in probe_batches(count)]
    assert (module.seen, module.evaluated) == (seen, seen)
    assert (result.global_step, result.epoch, result.status) == (count, 1, "finished")
    for stage in ("validate", "test", "predict"):
        module = Probed()
        getattr(Trainer(["-*"], fast_dev_run=value), stage)(module, probe_batches(5))
        assert module.evaluated == seen


def test_whatever_else_is_set_gives_way():
    module = Probed()
    trainer = Trainer(
        ["-*", "validation", Writes()],
        fast_dev_run=2,
        max_epochs=9,
        max_steps=0,
        min_steps=7,
        limit_train_batches=0,
        limit_val_batches=0,
        overfit_batches=1,
        val_check_interval=100,
        check_val_every_n_epoch=3,
        num_sanity_val_steps=5,
        early_stop_callback=True,
        max_time=0,
    )
    trainer.fit(module, probe_batches(5), probe_batches(5))
    assert (module.seen, module.evaluated) == ([1.0, 2.0], [1.0, 2.0])
    assert [plugin.name for plugin in trainer.plugins] == ["fast_dev_run"]


def test_the_last_batch_closes_the_window():
    module = Probed()
    assert Trainer(["-*"], fast_dev_run=True, accumulate_grad_batches=1).fit(module, probe_batches(5)).global_step == 1
    with pytest.warns(UserWarning, match="more than the 2 batches"):
        result = Trainer(["-*"], fast_dev_run=2, accumulate_grad_batches=4).fit(module, probe_batches(5))
    assert result.global_step == 1
    assert module.w.item() == -1.0 - 1.5


def test_no_more_steps_than_batches():
    class Pieces(Plugin):
        name = "pieces"

        @hookimpl
        def split_batch(self, loop):
            return [loop.batch] * 3

    module = Probed()
    result = Trainer(["-*", Pieces()], fast_dev_run=2).fit(module, probe_batches(5), probe_batches(3))
    assert (result.global_step, module.seen, module.evaluated) == (2, [1.0, 1.0], [1.0, 2.0])


def test_several_validation_loaders():
    module = Probed()
    loaders = [torch.utils.data.DataLoader(torch.arange(3.0), batch_size=None) for _ in range(2)]
    Trainer(["-*"], fast_dev_run=True).fit(module, probe_batches(2), loaders)
    assert module.evaluated == [0.0, 0.0]


@pytest.mark.parametrize("value", [False, 0])
def test_it_is_off(value):
    assert Trainer(["-*"], fast_dev_run=value).plugins == []


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"fast_dev_run .* must be a whole number from 1"):
        Trainer(["-*"], fast_dev_run=-1)
    with pytest.raises(TypeError, match="fast_dev_run"):
        Trainer(["-*"], fast_dev_run=1.5)


def test_it_finds_its_place_among_the_default_plugins():
    names = [plugin.name for plugin in Trainer(fast_dev_run=True, seed=1).plugins]
    assert "fast_dev_run" in names
    assert not {"validation", "csv", "checkpoint"} & set(names)
    lines = Trainer(fast_dev_run=True, seed=1).explain().splitlines()
    assert lines[lines.index("prepare_loader") + 1].split() == ["1.", "fast_dev_run", "around", "the", "rest"]


@pytest.mark.parametrize(("role", "is_there"), [(role, role in KEPT) for role in ROLES])
def test_a_strangers_plugin_is_left_out_if_its_role_writes_bounds_or_stops(role, is_there):
    class Stranger(Plugin):
        name = "stranger"
        tags = (role,)

        @hookimpl
        def setup(self):
            there.append(self)

    there = []
    Trainer(["-*", Stranger()], fast_dev_run=True).fit(Probed(), probe_batches(2))
    assert bool(there) == is_there
