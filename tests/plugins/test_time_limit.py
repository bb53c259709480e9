import pickle
import time
from datetime import timedelta

import pytest

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop_plugins.time_limit import TimeLimit


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on only when somebody says so."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


class Slow(Probe):
    """A batch takes 10 seconds."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch):
        self.clock[0] += 10
        return super().training_step(batch)


@pytest.mark.parametrize(
    ("limit", "batches"),
    [
        (25, 3),
        (30, 3),
        (30.5, 4),
        ("00:00:00:25", 3),
        (timedelta(seconds=25), 3),
        ({"seconds": 25}, 3),
        ({"minutes": 1, "seconds": 5}, 7),
        ("25 s", 3),
        (130, 13),
        (0, 0),
    ],
    ids=str,
)
def test_it_ends_at_the_first_batch_after_its_time(clock, limit, batches):
    result = Trainer(["-*"], max_time=limit).fit(Slow(clock), probe_batches(10))
    assert (result.global_step, result.epoch, result.status) == (batches, batches // 10, "stopped")
    assert result.reason == f"max_time={limit} is up"


@pytest.mark.parametrize(
    ("options", "steps", "status", "total"),
    [
        ({}, 23, "stopped", None),
        ({"max_epochs": 2}, 20, "finished", 20),
        ({"max_epochs": 3}, 23, "stopped", 30),
        ({"max_epochs": -1}, 23, "stopped", None),
        ({"max_steps": 12}, 12, "stopped", 12),
        ({"max_steps": -1}, 23, "stopped", None),
        ({"min_epochs": 1}, 23, "stopped", None),
        ({"min_epochs": 3}, 30, "stopped", None),
        ({"min_steps": 27}, 27, "stopped", None),
        ({"max_steps": 21, "min_steps": 27}, 21, "stopped", 21),
    ],
    ids=str,
)
def test_it_trains_until_the_time_is_over_or_a_maximum_is_reached(clock, options, steps, status, total):
    class Asks(Slow):
        def configure_optimizers(self):
            self.total = self.loop.total_steps
            return super().configure_optimizers()

    module = Asks(clock)
    result = Trainer(["-*"], max_time=230, **options).fit(module, probe_batches(10))
    assert (result.global_step, result.status, module.total) == (steps, status, total)


def test_minimums_delay_it(clock):
    assert Trainer(["-*"], max_time=25, min_steps=5).fit(Slow(clock), probe_batches(10)).global_step == 5


def test_the_open_window_is_closed(clock):
    module = Slow(clock)
    assert Trainer(["-*"], max_time=25, accumulate_grad_batches=2).fit(module, probe_batches(10)).global_step == 2
    assert module.w.item() == -4.5  # (1 + 2) / 2 + 3


def test_each_fit_has_its_own_time(clock):
    trainer = Trainer(["-*"], max_time=25)
    assert [trainer.fit(Slow(clock), probe_batches(10)).global_step for _ in range(2)] == [3, 3]


class Resume(Plugin):
    name = "resume"
    after = ("time_limit",)
    given: dict

    @hookimpl
    def before_fit(self, loop):
        loop.plugins[0].load_state_dict(self.given)
        assert loop.plugins[0].name == "time_limit"


def test_the_time_of_the_parts_of_a_resumed_run_is_added(clock):
    first = TimeLimit(25)
    Trainer(["-*", first]).fit(Slow(clock), probe_batches(1), max_epochs=1)
    clock[0] += 5000
    state = pickle.loads(pickle.dumps(first)).state_dict()
    assert state == {"spent": 10.0}
    second = TimeLimit(25)
    module = Slow(clock)
    Trainer(["-*", second, Resume(state)]).fit(module, probe_batches(10))
    assert len(module.seen) == 2
    assert second.spent == 30.0
    Trainer(["-*", second, Resume(second.state_dict())]).fit(module, probe_batches(10))
    assert len(module.seen) == 2


@pytest.mark.parametrize("limit", [-1, "10:00", "soon", {"weeks": "two"}, {"moons": 1}, timedelta(seconds=-1)])
def test_nonsense_is_refused(limit):
    with pytest.raises(ValueError, match="max_time"):
        Trainer(["-*"], max_time=limit)


def test_a_bool_is_no_time():
    with pytest.raises(TypeError, match="max_time"):
        Trainer(["-*"], max_time=True)
