"""How long epochs will be is one question and how batches are grouped into steps another: two plugins may answer."""

from __future__ import annotations

import math

import pytest

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop.toolkit import with_is_last

SHORT, UNEVEN, LONG = (2, 4, 6), (5, 1, 3), (8, 8, 8)


class Curriculum(Plugin):
    """Reads so many batches of the data in each epoch."""

    name = "curriculum"

    def __init__(self, *lengths):
        super().__init__()
        self.lengths = lengths

    @hookimpl
    def epoch_batches(self, loop, epoch):
        return self.lengths[min(epoch, len(self.lengths) - 1)]

    @hookimpl
    def read_batches(self, loop):
        length = self.lengths[min(loop.epoch, len(self.lengths) - 1)]
        return with_is_last(loop.train_loader, skip=loop.batch_idx, limit=None if length == math.inf else length)


class Asks(Probe):
    def configure_optimizers(self):
        self.total = self.loop.total_steps
        return super().configure_optimizers()


def run(*plugins, data=None, **options):
    module, user = Asks(), Trainer(["-*", *plugins], **{"max_epochs": 3, **options})
    result = user.fit(module, probe_batches(8) if data is None else data)
    return module, result


def by_hand(lengths, windows, limit=8):
    """The weight and the number of steps of a loop that one would write."""
    weight, steps = 0.0, 0
    for epoch, length in enumerate(lengths):
        batches = list(range(1, min(length, limit) + 1))
        for first in range(0, len(batches), windows[epoch]):
            window = batches[first : first + windows[epoch]]
            weight, steps = weight - sum(window) / len(window), steps + 1
    return weight, steps


@pytest.mark.filterwarnings("ignore:accumulate_grad_batches=.* is more than the")
@pytest.mark.parametrize("lengths", [SHORT, UNEVEN, LONG])
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("windows", [1, 2, 3, 20, {0: 2, 2: 3}])
def test_a_curriculum_and_accumulation_are_both_there(lengths, limit, windows):
    options = {} if windows == 1 else {"accumulate_grad_batches": windows}
    if limit:
        options["limit_train_batches"] = limit
    schedule = [2, 2, 3] if isinstance(windows, dict) else [windows] * 3
    module, result = run(Curriculum(*lengths), **options)
    weight, steps = by_hand(lengths, schedule, limit or 8)
    assert (module.total, result.global_step) == (steps, steps)
    assert module.w.item() == pytest.approx(weight, rel=1e-6)


def test_nine_steps_are_nine():
    assert run(Curriculum(3, 6, 9), data=probe_batches(12), accumulate_grad_batches=2)[0].total == 2 + 3 + 5
    assert run(Curriculum(4, 6, 8), accumulate_grad_batches=2)[0].total == 9
    assert run(Curriculum(4, 6, 8), accumulate_grad_batches=2, max_steps=7)[0].total == 7


def test_what_cannot_be_known_is_none():
    assert run(Curriculum(math.inf), accumulate_grad_batches=2)[0].total is None
    assert run(Curriculum(2, 3, 4), limit_train_batches=0.5)[0].total is None  # a fraction of what, in later epochs?
    assert run(limit_train_batches=0.5)[0].total == 4 * 3
    assert run(data=(each for each in probe_batches(2)), max_epochs=1)[0].total is None


@pytest.mark.parametrize(("every", "total"), [(1, None), (2, None), (3, 6), (9, 6)])
def test_a_loader_that_is_still_to_come_may_have_another_length(every, total):
    class Loads(Asks):
        loaded = 0

        def train_dataloader(self):
            self.loaded += 1
            return probe_batches(1 + self.loaded)

    module = Loads()
    Trainer(["-*"], max_epochs=3, reload_dataloaders_every_n_epochs=every).fit(module)
    assert module.total == total
    module = Loads()
    known = Curriculum(2, 3, 4)
    Trainer(["-*", known], max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(module)
    assert module.total == len(module.seen) == 9


def test_to_hold_a_step_is_a_question_without_effects():
    """Whoever asks twice, or answers in its place, changes no result."""
    asked = []

    class AsksTwice(Plugin):
        name = "asks_twice"
        before = ("accumulate",)

        @hookimpl(wrapper=True)
        def hold_step(self, loop):
            before = {name: repr(value) for name, value in vars(loop.window).items()}
            held = yield
            asked.append(before == {name: repr(value) for name, value in vars(loop.window).items()})
            return held

    plain, _ = run(accumulate_grad_batches=3)
    asking, _ = run(AsksTwice(), accumulate_grad_batches=3)
    assert asking.w.item() == plain.w.item()
    assert set(asked) == {True}


@pytest.mark.parametrize("planned", [1, 2, 7])
def test_a_window_is_the_mean_whatever_was_planned(planned):
    class Plans(Plugin):
        name = "plans"
        before = ("accumulate",)

        @hookimpl
        def plan_window(self, loop):
            return planned

    module, _ = run(Plans(), accumulate_grad_batches=3)
    assert module.w.item() == pytest.approx(by_hand((8, 8, 8), [3] * 3)[0], rel=1e-6)
