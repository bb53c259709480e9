"""Data without a length: nothing is read before it is trained on, and numbers, limits, stops and resume go with that."""

import pytest
import torch
from torch.utils.data import IterableDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches

WINDOWS = (1, 2, 3, 4)
SAVES = ("checkpoint", "run_dir")


def fit(module, data, plugins=(), **options):
    return Trainer(["-*", *plugins], **options).fit(module, data)


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


class Unsized(IterableDataset):
    def __iter__(self):
        return iter(probe_batches(4))


class Policy(Probe):
    """Tells how many steps it has been trained for."""

    def training_step(self, batch):
        made_at, number = batch
        self.trace = [*getattr(self, "trace", ()), (self.loop.global_step, made_at)]
        return self.w * number


def played(module, count=6):
    """Data that is made with the network as it is when the data is asked for."""
    for number in range(1, count + 1):
        yield module.loop.global_step, float(number)


@pytest.mark.parametrize("ahead", [False, True])
def test_data_is_made_when_it_is_trained_on_and_one_batch_earlier_only_where_that_is_asked_for(ahead):
    module = Policy()
    fit(module, played(module), read_ahead=ahead)
    assert module.trace == [(step, max(0, step - 1) if ahead else step) for step in range(6)]
    module = Policy()
    fit(module, (batch for batch in played(module)), read_ahead=ahead, limit_train_batches=3)
    assert module.trace == [(0, 0), (1, 1), (2, 2)]  # the last is known by the limit


@pytest.mark.parametrize("accumulate", WINDOWS)
@pytest.mark.parametrize("ahead", [False, True])
def test_numbers_do_not_depend_on_whether_the_last_batch_is_known(ahead, accumulate):
    ours, theirs = Probe(momentum=0.5), Probe(momentum=0.5)
    result = fit(ours, Unsized(), accumulate_grad_batches=accumulate, max_epochs=2, read_ahead=ahead)
    sized = fit(theirs, probe_batches(4), accumulate_grad_batches=accumulate, max_epochs=2)
    assert (ours.w.item(), result.global_step, result.epoch) == (theirs.w.item(), sized.global_step, 2)


@pytest.mark.parametrize(("ahead", "finished"), [(False, 0), (True, 1)])
def test_a_stop_with_the_last_batch_of_such_data_ends_the_epoch_only_where_that_is_known(ahead, finished):
    result = fit(Probe(), Unsized(), max_steps=4, read_ahead=ahead)
    assert (result.global_step, result.epoch) == (4, finished)


class Game(IterableDataset):
    """An environment whose state is moved on by the weights; it is resumed by its state."""

    def __init__(self, module):
        self.module, self.state, self.left = module, 1.0, 7

    def __iter__(self):
        while self.left:
            self.left -= 1
            self.state = 0.5 * self.state + self.module.w.item()
            yield torch.tensor(self.state)
        self.left = 7

    def state_dict(self):
        return {"state": self.state, "left": self.left}

    def load_state_dict(self, state):
        self.state, self.left = state["state"], state["left"]


@pytest.mark.parametrize("stop", [2, 7, 9, 14])
@pytest.mark.parametrize("limit", [1.0, 5])
def test_a_stream_with_a_state_is_resumed_by_it_and_not_replayed_with_other_weights(tmp_path, stop, limit):
    options = {"max_epochs": 3, "accumulate_grad_batches": 2, "limit_train_batches": limit}
    first, again, whole = (Probe(lr=0.1) for _ in range(3))
    fit(first, Game(first), plugins=[*SAVES, StopAt(stop)], checkpoint_dir=tmp_path, **options)
    fit(again, Game(again), plugins=[*SAVES, StopAt(None)], checkpoint_dir=tmp_path, resume="auto", **options)
    fit(whole, Game(whole), **options)
    assert [*first.seen, *again.seen] == whole.seen
    assert again.w.item() == whole.w.item()


def test_what_is_saved_at_the_end_of_training_has_the_end_of_the_epoch_in_it(tmp_path):
    begun = []

    class Told(Plugin):
        name = "told"

        @hookimpl
        def before_epoch(self, loop):
            begun.append(loop.epoch)

    for resume in (None, "auto"):
        options = {"checkpoint_dir": tmp_path, "save_every": "4 batches", "resume": resume}
        result = fit(Probe(), Unsized(), plugins=[*SAVES, Told()], **options)
        assert (result.epoch, begun) == (1, [0])  # what is resumed has nothing left to do
