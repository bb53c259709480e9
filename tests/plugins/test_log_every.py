import pickle

import pytest
import torch
from torch import Tensor

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, Rows, probe_batches

BARE = ["-*", "log_every", "validation"]


class Logging(Probe):
    """Logs each batch's number: for steps as ``x``, for the epoch as ``mean``; validation logs its own."""

    def training_step(self, batch):
        self.log("x", batch)
        self.log("mean", batch, on_epoch=True)
        return super().training_step(batch)

    def validation_step(self, batch):
        self.log("val", batch)

    test_step = validation_step


def run(module=None, batches=10, val=None, **options):
    rows = Rows()
    Trainer([*BARE, rows], **options).fit(module or Logging(), probe_batches(batches), val)
    return rows


def test_the_first_every_nth_and_the_last_step_have_a_row():
    assert run(log_every_n_steps=4).steps("x") == [1, 4, 8, 10]
    assert run(log_every_n_steps=5).steps("x") == [1, 5, 10]
    assert run(log_every_n_steps=4, max_epochs=2).steps("x") == [1, 4, 8, 12, 16, 20]
    assert run().steps("x") == [1, 10]


def test_steps_are_counted_not_batches_and_a_window_is_its_mean():
    rows = run(log_every_n_steps=1, accumulate_grad_batches=4)
    assert [(step, row["x"]) for step, row in rows.rows if "x" in row] == [(1, 2.5), (2, 6.5), (3, 9.5)]


def test_a_row_of_a_window_that_only_the_end_of_the_epoch_closes_is_kept():
    class Hold(Plugin):
        name = "hold"

        @hookimpl
        def hold_step(self, loop):
            loop.window.planned = 4
            return loop.window.batches < 4 or None

    rows = Rows()
    Trainer([*BARE, rows, Hold()], log_every_n_steps=1, max_epochs=2).fit(Logging(), probe_batches(6))
    assert [(step, row["x"]) for step, row in rows.rows if "x" in row] == [(1, 2.5), (2, 5.5), (3, 2.5), (4, 5.5)]


def test_the_whole_of_what_is_written():
    rows = run(log_every_n_steps=2, batches=3, val=probe_batches(4), max_epochs=2)
    assert rows.rows == [
        (1, {"epoch": 0, "x": 1.0}),
        (2, {"epoch": 0, "x": 2.0}),
        (3, {"epoch": 0, "mean": 2.0}),
        (3, {"epoch": 0, "val": 2.5}),
        (4, {"epoch": 1, "x": 1.0}),
        (6, {"epoch": 1, "x": 3.0}),
        (6, {"epoch": 1, "mean": 2.0}),
        (6, {"epoch": 1, "val": 2.5}),
    ]


def test_none_and_0_write_no_rows_of_steps():
    for off in (None, 0):
        rows = run(log_every_n_steps=off, val=probe_batches(2))
        assert rows.rows == [(10, {"epoch": 0, "mean": 5.5}), (10, {"epoch": 0, "val": 1.5})]


def test_c61_steps_never_decrease_and_a_resumed_run_goes_on():
    class Resume(Plugin):
        name, after = "resume", ("log_every",)
        states = None

        @hookimpl
        def before_fit(self, loop):
            if self.states:
                loop.epoch, loop.global_step, loop.total_batches = 1, 5, 5
                for plugin in loop.plugins:
                    plugin.load_state_dict(self.states.get(plugin.name, {})) if plugin.name == "log_every" else None

        @hookimpl
        def after_fit(self, loop):
            self.states = pickle.loads(pickle.dumps({plugin.name: plugin.state_dict() for plugin in loop.plugins}))

    resume, first, second = Resume(), Rows(), Rows()
    Trainer([*BARE, first, resume], log_every_n_steps=1).fit(Logging(), probe_batches(5), probe_batches(2))
    Trainer([*BARE, second, resume], log_every_n_steps=1, max_epochs=2).fit(
        Logging(), probe_batches(5), probe_batches(2)
    )
    steps = [step for step, _ in first.rows + second.rows]
    assert steps == sorted(steps)
    assert first.steps("x") + second.steps("x") == list(range(1, 11))
    assert first.steps("val") + second.steps("val") == [5, 10]


def test_a_resumed_run_keeps_the_rhythm():
    rows = Rows()

    class Go(Plugin):
        name, after = "go", ("log_every",)

        @hookimpl
        def before_fit(self, loop):
            loop.global_step = loop.total_batches = 6
            log_every = next(plugin for plugin in loop.plugins if plugin.name == "log_every")
            log_every.load_state_dict({"every": {"seen": 6}, "started": True, "pending": None})

    Trainer([*BARE, rows, Go()], log_every_n_steps=4).fit(Logging(), probe_batches(6))
    assert rows.steps("x") == [8, 12]


def test_c63_evaluation_alone_is_written_once():
    for stage in ("validate", "test"):
        rows = Rows()
        getattr(Trainer([*BARE, rows]), stage)(Logging(), probe_batches(4))
        assert rows.rows == [(0, {"epoch": 0, "val": 2.5})]


def test_c63_the_last_step_before_an_error_has_a_row():
    class Failing(Logging):
        def training_step(self, batch):
            if batch == 7:
                raise RuntimeError("batch 7")
            return super().training_step(batch)

    rows = Rows()
    with pytest.raises(RuntimeError, match="batch 7"):
        Trainer([*BARE, rows]).fit(Failing(), probe_batches())
    assert rows.steps("x") == [1, 6]


def test_c63_a_failing_logger_does_not_hide_the_error_of_training():
    class Broken(Plugin):
        name, tags = "broken", ("logger",)

        @hookimpl
        def log_metrics(self, loop, metrics, step):
            if step > 1:
                raise OSError("disk full")

    class Failing(Logging):
        def training_step(self, batch):
            if batch == 3:
                raise RuntimeError("batch 3")
            return super().training_step(batch)

    with pytest.raises(RuntimeError, match="batch 3") as caught:
        Trainer([*BARE, Broken()]).fit(Failing(), probe_batches())
    assert any("disk full" in note and "'broken'" in note for note in caught.value.__notes__)


READS = ("item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__")


@pytest.fixture
def reads(monkeypatch):
    """The reads of tensors that are no constants of the test, counted."""
    found = []
    for name in READS:
        original = getattr(Tensor, name)
        monkeypatch.setattr(
            Tensor, name, lambda self, *a, _o=original, _n=name, **k: (found.append(_n), _o(self, *a, **k))[1]
        )
    return found


class Blind(Module):
    """As ``Logging``, and reads no value itself."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch):
        loss = batch * self.w
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


@pytest.mark.parametrize(("options", "expected"), [({"log_every_n_steps": 10}, 11), ({"log_every_n_steps": None}, 0)])
def test_c57_values_are_read_when_a_row_is_written_and_at_no_other_time(reads, options, expected):
    count = []

    class Count(Plugin):
        name, after = "count", ("log_every",)

        @hookimpl
        def after_fit(self, loop):  # called before log_every's: the row of the last step is written already
            count.append(len(reads))

    rows = Rows()
    data = probe_batches(100)
    Trainer([*BARE, rows, Count()], **options).fit(Blind(), data)
    assert count == [expected]
    assert len(rows.rows) == expected


def test_c57_without_a_logger_nothing_is_read(reads):
    count = []

    class Count(Plugin):
        name, after = "count", ("log_every",)

        @hookimpl
        def teardown(self, loop):
            count.append(len(reads))

    Trainer([*BARE, Count()], log_every_n_steps=1).fit(Blind(), probe_batches(100))
    assert count == [0]


def test_old_names():
    for old in ("row_log_interval", "add_row_log_interval"):
        with pytest.warns(DeprecationWarning, match="log_every_n_steps"):
            trainer = Trainer(BARE[:2], **{old: 7})
        assert trainer.log_every_n_steps == 7


def test_fitting_twice_starts_clean():
    rows = Rows()
    trainer = Trainer([*BARE, rows], log_every_n_steps=4)
    trainer.fit(Logging(), probe_batches(6))
    trainer.fit(Logging(), probe_batches(6))
    assert rows.steps("x") == [1, 4, 6, 1, 4, 6]
    pickle.loads(pickle.dumps(trainer))
