"""Data whose ``len()`` is wrong, what is trained on, what is counted, what is said."""

from __future__ import annotations

import warnings

import pytest
from torch.utils.data import DataLoader, IterableDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches


class Lying(list):
    """The batches 1 to ``gives``, whose ``len()`` is ``says``."""

    def __init__(self, says, gives):
        super().__init__(probe_batches(gives))
        self.says = says

    def __len__(self):
        return self.says


class LyingSet(IterableDataset):
    def __init__(self, says, gives):
        self.says, self.gives = says, gives

    def __len__(self):
        return self.says

    def __iter__(self):
        return iter(probe_batches(self.gives))


def loader(says, gives, kind):
    return Lying(says, gives) if kind == "list" else DataLoader(LyingSet(says, gives), batch_size=None)


class Net(Probe):
    """Knows what the loop expected; validation logs the batch."""

    def configure_optimizers(self):
        self.total = self.loop.total_steps
        return super().configure_optimizers()

    def validation_step(self, batch):
        self.log("mean", batch)


def fit(module, data, val=None, plugins=(), **options):
    """The result, and what was said of lengths."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # torch has a warning of its own for datasets that give too much
        result = Trainer(["-*", *plugins], **options).fit(module, data, val)
    return result, [str(each.message) for each in said if "says by len()" in str(each.message)]


WINDOWS = {1: -10.0, 2: -5.0, 3: -2.0 - 4.0, 4: -2.5, 8: -2.5}
"""By accumulation: what the batches 1 to 4 make of ``w``."""


@pytest.mark.parametrize("kind", ["list", "dataset"])
@pytest.mark.parametrize("accumulate", WINDOWS)
@pytest.mark.parametrize(("says", "gives"), [(4, 10), (10, 4), (4, 4)])
def test_four_batches_are_trained_on_whether_more_are_said_or_given(says, gives, accumulate, kind):
    module, epochs, steps = Net(), 3, -(-4 // accumulate) * 3
    result, said = fit(module, loader(says, gives, kind), accumulate_grad_batches=accumulate, max_epochs=epochs)
    assert (module.w.item(), result.global_step, result.epoch) == (WINDOWS[accumulate] * epochs, steps, epochs)
    assert len(said) == (says != gives)
    if says == 4:
        assert module.total == steps
    if said:
        name = "Lying" if kind == "list" else "DataLoader of LyingSet"
        assert said[0].startswith(f"the training data ({name}) says by len() that it has {says} batches, and ")


@pytest.mark.parametrize("limit", [3, 4, 6, 0.5, 1.0])
@pytest.mark.parametrize(("says", "gives"), [(4, 10), (10, 4)])
def test_limits_are_of_what_is_said_and_bound_what_is_read(says, gives, limit):
    module = Net()
    most = limit if isinstance(limit, int) else int(says * limit)
    result, said = fit(module, loader(says, gives, "list"), limit_train_batches=limit, max_epochs=2)
    trained = min(most, says, gives)
    assert result.global_step == 2 * trained
    assert module.seen == [*range(1, trained + 1)] * 2
    assert len(said) == (most > gives or most > says or (most == says and isinstance(limit, float)))


@pytest.mark.parametrize(("says", "gives"), [(4, 10), (10, 4)])
def test_evaluation_goes_by_the_same_rule_and_says_it_once_for_all_passes(says, gives):
    module = Net()
    result, said = fit(
        module,
        probe_batches(2),
        {"a": loader(says, gives, "list"), "b": probe_batches(4)},
        ["validation"],
        max_epochs=2,
    )
    assert result.metrics == {"mean/a": 2.5, "mean/b": 2.5}
    assert [each.partition(" says")[0] for each in said] == ["the data to validate/a (Lying)"]


class StopAt(Plugin):
    """Interrupts the run when so many batches are done."""

    name = "stop_at"
    before = ("checkpoint",)

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    @hookimpl
    def after_batch(self, loop):
        if loop.total_batches + 1 == self.batches:
            loop.interrupt("enough")


SAVES = ("checkpoint", "run_dir")


@pytest.mark.parametrize("stop", range(1, 8))
@pytest.mark.parametrize(("says", "gives"), [(4, 10), (10, 4)])
def test_what_is_saved_between_the_batches_of_such_data_is_gone_on_from(tmp_path, says, gives, stop):
    first, again, whole = (Net(momentum=0.5) for _ in range(3))
    options = {"accumulate_grad_batches": 3, "max_epochs": 2}
    fit(first, loader(says, gives, "list"), None, [*SAVES, StopAt(stop)], checkpoint_dir=tmp_path, **options)
    result, _ = fit(again, loader(says, gives, "list"), None, SAVES, checkpoint_dir=tmp_path, resume="auto", **options)
    fit(whole, loader(says, gives, "list"), **options)
    assert (again.w.item(), result.global_step, result.epoch) == (whole.w.item(), 4, 2)
    assert [*first.seen, *again.seen] == whole.seen
