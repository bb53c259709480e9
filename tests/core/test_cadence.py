import pickle
import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from lightloop import Every, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop.toolkit import seconds_of


class Marks(Plugin):
    """Notes when its rhythm is due: the batches done, and whether at an epoch's end."""

    name = "marks"
    when: Any
    given: Any = None

    def validate(self):
        self.every, self.at = Every(self.when), []

    @hookimpl
    def before_fit(self, loop):
        self.every.start(loop)
        if self.given:
            loop.global_step, loop.total_batches, loop.epoch, loop.batch_idx, kept = self.given
            self.every.load_state_dict(kept)

    @hookimpl
    def after_batch(self, loop):
        if self.every.due(loop):
            self.at.append(loop.total_batches + 1)

    @hookimpl
    def after_epoch(self, loop):
        if self.every.due_at_epoch_end(loop):
            self.at.append(f"epoch {loop.epoch}")


def marks(when, batches=5, **options):
    plugin = Marks(when)
    data = probe_batches(batches) if isinstance(batches, int) else batches
    Trainer([plugin], **options).fit(Probe(), data)
    return plugin.at


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (3, [3, 6, 9]),
        ("3 steps", [3, 6, 9]),
        ("1 step", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("4 batches", [4, 8]),
        ("epoch", ["epoch 0", "epoch 1"]),
        ("2 epochs", ["epoch 1"]),
        (1.0, ["epoch 0", "epoch 1"]),
        (0.5, [3, "epoch 0", 8, "epoch 1"]),
        (0.3, [2, 3, "epoch 0", 7, 8, "epoch 1"]),
        ("0.25 epochs", [2, 3, 4, "epoch 0", 7, 8, 9, "epoch 1"]),
        ({1: 2}, [6, 8, 10]),
        ({0: "2 epochs", 1: 0.5}, [8, "epoch 1"]),
        ("1 h", []),
        (lambda loop: loop.batch_idx == 3, [4, 9]),
        (Every(3), [3, 6, 9]),
    ],
)
def test_the_marks_of_two_epochs_of_5(when, expected):
    assert marks(when, max_epochs=2) == expected


def test_steps_are_counted_once_per_applied_step():
    assert marks(1, accumulate_grad_batches=2, max_epochs=2) == [2, 4, 5, 7, 9, 10]
    assert marks(2, accumulate_grad_batches=2, max_epochs=2) == [4, 7, 10]
    assert marks("2 batches", accumulate_grad_batches=2, max_epochs=2) == [2, 4, 6, 8, 10]


def test_a_step_made_after_the_last_batch_is_not_lost():
    data = [torch.tensor(1.0), torch.tensor(2.0), None]
    assert marks(1, data, accumulate_grad_batches=3, max_epochs=2) == ["epoch 0", "epoch 1"]


def test_several_optimizers_make_no_mark_twice():
    class Two(Probe):
        def training_step(self, batch, optimizer_idx):
            return batch * self.w

        def configure_optimizers(self):
            return [torch.optim.SGD([self.w], lr=1.0), torch.optim.SGD([self.w], lr=1.0)]

    class OnSteps(Marks):
        after_batch = None

        @hookimpl
        def after_step(self, loop):
            if self.every.due(loop):
                self.at.append((loop.total_batches + 1, loop.optimizer_idx))

    plugin = OnSteps(2)
    Trainer([plugin]).fit(Two(), probe_batches(5))
    assert plugin.at == [(2, 0), (4, 0)]


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize(("p", "q"), [(1, 10), (1, 3), (3, 10), (1, 2), (1, 7), (1, 11), (9, 10)])
def test_fractions_are_spread_evenly_and_end_with_the_epoch(n, p, q):
    exact = {-(-i * n * p // q) for i in range(1, q + 1)}  # ceil(i * n * p / q) in whole numbers
    assert marks(p / q, n) == [*sorted(mark for mark in exact if mark < n), "epoch 0"]


def test_a_fraction_needs_a_length():
    with pytest.raises(ValueError, match="unknown length"):
        marks(0.5, iter(probe_batches()))


def test_an_epoch_that_was_broken_off_does_not_count():
    assert marks("epoch", max_steps=3) == []
    assert marks(0.5, max_steps=3) == [3]


@pytest.mark.parametrize(
    "when", [3, "4 batches", "2 epochs", 0.5, {0: 3, 1: "2 batches"}, {0: "3 batches", 1: "3 batches"}]
)
@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_resumed_rhythm_goes_on_as_if_never_stopped(when, stop):
    whole = marks(when, max_epochs=4)

    class Stops(Marks):
        @hookimpl
        def after_batch(self, loop):
            super().after_batch(loop)
            if loop.total_batches + 1 == stop:
                self.kept = (
                    loop.global_step,
                    loop.total_batches + 1,
                    loop.epoch,
                    loop.batch_idx + 1,
                    pickle.loads(pickle.dumps(self.every)).state_dict(),
                )
                loop.interrupt("enough")

    first = Stops(when)
    Trainer([first], max_epochs=4).fit(Probe(), probe_batches(5))
    second = Marks(when, first.kept)
    Trainer([second], max_epochs=4).fit(Probe(), probe_batches(5))
    assert first.at + second.at == whole


def test_a_rhythm_without_state_does_not_make_up_for_what_was_before():
    class New(Marks):
        @hookimpl
        def before_fit(self, loop):
            self.every.start(loop)
            loop.global_step = loop.total_batches = 7

    plugin = New(5)
    Trainer([plugin], accumulate_grad_batches=2).fit(Probe(), probe_batches(10))
    assert plugin.at == [13]  # step 10 is the third of this run: batches 7 + 6


def test_fitting_twice_starts_clean():
    plugin = Marks(3)
    trainer = Trainer([plugin])
    trainer.fit(Probe(), probe_batches(5))
    trainer.fit(Probe(), probe_batches(5))
    assert plugin.at == [3, 3]


def test_time_is_counted_from_the_last_mark_and_survives_a_restart(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class Slow(Probe):
        def training_step(self, batch):
            now[0] += 10
            return super().training_step(batch)

    plugin = Marks("25 s")
    Trainer([plugin]).fit(Slow(), probe_batches(8))
    assert plugin.at == [3, 6]
    kept = plugin.every.state_dict()
    assert kept == {"spent": 20.0}
    now[0] += 1000  # the time between two processes is nobody's
    resumed = Marks(timedelta(seconds=25), (8, 8, 0, 0, kept))
    Trainer([resumed]).fit(Slow(), probe_batches(3))
    assert resumed.at == [9]
    sent = pickle.dumps(plugin.every)
    now[0] -= 500  # another machine has another clock
    assert pickle.loads(sent).state_dict() == {"spent": 1050.0}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90 s", 90), ("15 min", 900), ("2h", 7200), ("1 day", 86400), ("01:02:03:04", 93784)]
)
def test_times_in_words(text, seconds):
    assert Every(text)._rhythm.seconds == seconds


@pytest.mark.parametrize(
    "when",
    [0, -1, 0.0, 1.5, "0 steps", "1.5 batches", "3 moons", "", "x:y", {}, {-1: 3}, {"0": 3}, {0: 0}, float("nan")],
)
def test_nonsense_is_refused(when):
    with pytest.raises(ValueError, match=r"when to act|whole|schedule"):
        Every(when)


@pytest.mark.parametrize("when", [True, None, [1], {0: None}])
def test_other_types_are_refused(when):
    with pytest.raises(TypeError, match="when to act must be a whole number of steps"):
        Every(when)


def test_equal_rhythms_are_equal():
    assert Every(3) == Every(3)
    assert Every(3) != Every(4)
    assert repr(Every("2 epochs")) == "Every('2 epochs')"


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        (5, 5.0),
        ("90 s", 90.0),
        ("1.5 h", 5400.0),
        ("00:00:01:05", 65.0),
        (timedelta(minutes=2), 120.0),
        ({"hours": 1, "seconds": 2}, 3602.0),
    ],
)
def test_seconds_of(span, seconds):
    assert seconds_of(span) == seconds


@pytest.mark.parametrize("span", ["5 steps", "3 moons", "1:30", ""])
def test_what_is_no_time_is_refused(span):
    with pytest.raises(ValueError, match="like '90 s', '15 min', '2 h' or 'DD:HH:MM:SS'"):
        seconds_of(span)
