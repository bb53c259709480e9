import fcntl
import os
import pickle
import re
import struct
import sys
import termios
import threading
from types import ModuleType, SimpleNamespace

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop_plugins._notebook import in_notebook
from lightloop_plugins.progress.tracks import Bar, Lines, choose, speed

BARE = ["-*", "progress", "running_loss", "validation"]


class Shown(Probe):
    def training_step(self, batch):
        self.log("x", batch, prog_bar=True)
        return batch + 0 * self.w

    def validation_step(self, batch):
        self.log("val", batch, prog_bar=True)

    test_step = validation_step


class Terminal:
    """A pseudo-terminal of 100 columns as sys.stderr; ``text`` is what was written there."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.written = monkeypatch, []

    def __enter__(self):
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self.monkeypatch.setattr(sys, "stderr", self.stream)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        return self

    def read(self):
        try:
            while data := os.read(self.master, 65536):
                self.written.append(data)
        except OSError:  # the other end is closed
            pass

    def __exit__(self, *_):
        self.monkeypatch.undo()
        self.stream.close()
        self.reader.join()
        os.close(self.master)
        self.text = b"".join(self.written).decode()


@pytest.fixture
def terminal(monkeypatch):
    return Terminal(monkeypatch)


def screen(text):
    """The lines that a terminal shows after ``text``."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[A|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\x1b[A":
            row -= 1
        elif part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_what_a_terminal_shows_at_the_end(terminal):
    with terminal:
        Trainer(BARE, max_epochs=2, progress_interval=0.0).fit(Shown(), probe_batches(4), probe_batches(3))
    lines = screen(terminal.text)
    form = r"epoch {}/2      100% █{{20}} 4/4 \[00:00<00:00, [\d.]+ batches/s, loss=2.5, x=4, val=2\]"
    assert [bool(re.fullmatch(form.format(epoch), lines[epoch - 1])) for epoch in (1, 2)] == [True, True], lines
    assert lines[2:] == [""]


def test_what_is_drawn_on_the_way(terminal):
    with terminal:
        Trainer(BARE, progress_interval=0.0).fit(Shown(), probe_batches(4), probe_batches(3))
    text = terminal.text
    for title, total in (("sanity check", 2), ("epoch 1", 4), ("validation", 3)):
        counts = [int(n) for n in re.findall(rf"{title} +\d+% [█▏▎▍▌▋▊▉ ]+ (\d+)/{total} ", text)]
        assert counts == sorted(counts)
        assert set(counts) == set(range(total + 1))


def test_c65_a_resumed_epoch_starts_where_it_is(terminal):
    class Resume(Plugin):
        name = "resume"

        @hookimpl
        def before_fit(self, loop):
            loop.batch_idx = loop.total_batches = loop.global_step = 4

    with terminal:
        Trainer([*BARE, Resume()], progress_interval=0.0).fit(Shown(), probe_batches(10))
    text = terminal.text
    assert sorted(map(int, set(re.findall(r"(\d+)/10 ", text))))[0] == 4
    assert " 10/10 " in screen(text)[0]
    assert set(re.findall(r"<(.*?)[,\]]", text)) == {"?", "00:00"}


def test_c65_the_speed_is_that_of_this_runs_batches(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("lightloop_plugins.progress.tracks.monotonic", lambda: now[0])
    track = Lines("epoch 1", 10, 4, True)
    now[0] = 101.0
    track.draw(6, {})
    now[0] = 105.0
    track.rest(2.0)
    track.draw(10, {"loss": 0.123456}, over=True)
    track.close()
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1: 6/10, 2 batches/s",
        "epoch 1: 10/10, 2 batches/s, loss=0.1235",
    ]


def test_the_bar_of_a_terminal_leaves_rests_out(terminal):
    with terminal:
        new, _ = choose()
        track = new("epoch 1", 10, 0, True)
        assert isinstance(track, Bar)
        track.bar.start_t -= 10
        track.start -= 10
        track.draw(5, {})
        assert track.bar.format_dict["elapsed"] == pytest.approx(10, abs=1)
        track.rest(5)
        track.draw(5, {})
        assert track.bar.format_dict["elapsed"] == pytest.approx(5, abs=1)
        track.close()
    assert re.search(r" 5/10 \[00:0[56]<00:0[56], 1[.\d]* s/batch\]$", screen(terminal.text)[0])


def test_a_log_file_has_whole_lines(capsys):
    Trainer(BARE, max_epochs=2).fit(Shown(), probe_batches(4), probe_batches(3))
    text = capsys.readouterr().err
    assert text.replace("\n", "").isprintable()
    lines = [re.sub(r"[\d.]+ batches/s", "R", line) for line in text.splitlines()]
    assert lines == [f"epoch {epoch}/2: 4/4, R, loss=2.5, x=4, val=2" for epoch in (1, 2)]


def test_a_log_file_has_a_line_every_few_seconds(capsys):
    Trainer(BARE, progress_interval=0.0).fit(Shown(), iter(probe_batches(3)))
    lines = [re.sub(r"[\d.]+ batches/s", "R", line) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "epoch 1: 1 batches, R, loss=1, x=1",
        "epoch 1: 2 batches, R, loss=1.5, x=2",
        "epoch 1: 3 batches, R, loss=2, x=3",
        "epoch 1: 3 batches, R, loss=2, x=3",
    ]


def test_unsized_loaders_on_a_terminal(terminal):
    with terminal:
        Trainer(BARE, progress_interval=0.0).fit(Shown(), iter(probe_batches(3)))
    assert re.fullmatch(r"epoch 1 +3 batches \[00:00, [\d.]+ batches/s, loss=2, x=3\]", screen(terminal.text)[0])


def test_evaluation_alone_shows_its_result(terminal):
    with terminal:
        metrics = Trainer(BARE).test(Shown(), {"a": probe_batches(2), "b": probe_batches(4)})
    assert metrics == {"val/a": 1.5, "val/b": 2.5}
    line = screen(terminal.text)[0]
    assert re.fullmatch(r"test +100% █+ 6/6 \[00:00<00:00, [\d.]+ batches/s, val/a=1.5, val/b=2.5\]", line)


def test_of_two_names_the_users_wins(capsys):
    class Own(Shown):
        def training_step(self, batch):
            self.log("loss", 7.0, prog_bar=True)
            return super().training_step(batch)

    trainer = Trainer(BARE)
    trainer.fit(Own(), probe_batches(2))
    assert "loss=7, x=2" in capsys.readouterr().err
    assert trainer.progress_bar_dict == {"loss": 7.0, "x": 2.0}


@pytest.mark.parametrize(
    ("plugins", "options", "expected"), [(BARE, {}, 2), (BARE, {"progress_interval": 0.0}, 12), (["-*"], {}, 0)]
)
def test_c57_values_are_read_when_they_are_drawn(plugins, options, expected, monkeypatch):
    class Quiet(Shown):
        def training_step(self, batch):
            loss = batch * self.w
            self.log("x", loss, prog_bar=True)
            return loss

    reads = []

    class Count(Plugin):
        name, before = "count", ("progress",)

        @hookimpl
        def teardown(self, loop):
            self.count = len(reads)

    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda t, *a, _o=original, _n=name, **k: (reads.append(_n), _o(t, *a, **k))[1]
        )
    count = Count()
    Trainer([*plugins, count], max_epochs=2, **options).fit(Quiet(), probe_batches(5))
    assert count.count == expected


def test_an_error_leaves_the_bar_where_it_was(terminal):
    class Failing(Shown):
        def training_step(self, batch):
            if batch == 3:
                raise RuntimeError("no")
            return super().training_step(batch)

    with terminal, pytest.raises(RuntimeError, match="no"):
        Trainer(BARE, progress_interval=0.0).fit(Failing(), probe_batches(4))
    lines = screen(terminal.text)
    assert " 2/4 " in lines[0]
    assert lines[1:] == [""]


def test_an_error_in_validation_closes_both(terminal):
    class Failing(Shown):
        def validation_step(self, batch):
            raise RuntimeError("no")

    with terminal, pytest.raises(RuntimeError, match="no"):
        Trainer(BARE, num_sanity_val_steps=0).fit(Failing(), probe_batches(4), probe_batches(3))
    lines = screen(terminal.text)
    assert " 4/4 " in lines[0]
    assert lines[1:] == [""] * len(lines[1:])


@pytest.mark.parametrize("old", ["show_progress_bar", "progress_bar_refresh_rate"])
def test_off_and_the_old_names(old):
    assert Trainer(enable_progress_bar=False).plugin("progress") is None
    for value, live in ((0, False), (1, True)):
        with pytest.warns(DeprecationWarning, match="enable_progress_bar"):
            assert (Trainer(**{old: value}).plugin("progress") is not None) is live


def test_it_works_without_the_running_loss(capsys):
    Trainer(["-*", "progress"]).fit(Shown(), probe_batches(2))
    assert re.fullmatch(r"epoch 1: 2/2, [\d.]+ batches/s, x=2\n", capsys.readouterr().err)


def test_without_a_stderr_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert Trainer(BARE).fit(Shown(), probe_batches(2)).status == "finished"


def test_it_pickles_and_begins_anew(capsys):
    trainer = Trainer(BARE)
    trainer.fit(Shown(), probe_batches(2))
    pickle.loads(pickle.dumps(trainer)).fit(Shown(), probe_batches(3))
    assert [re.sub(r", [\d.]+ batches/s", "", line) for line in capsys.readouterr().err.splitlines()] == [
        "epoch 1: 2/2, loss=1.5, x=2",
        "epoch 1: 3/3, loss=2, x=3",
    ]


def test_speeds_are_readable():
    assert [speed(*each) for each in ((0, 1.0), (30, 10.0), (1, 4.0), (12345, 1.0))] == [
        [],
        ["3 batches/s"],
        ["4 s/batch"],
        ["12345 batches/s"],
    ]


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="progress_interval"):
        Trainer(progress_interval=-1.0)
    with pytest.raises(ValueError, match="process_position"):
        Trainer(process_position=-1)


def test_a_terminal_that_was_closed_does_not_end_the_run(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        def isatty(self):
            return False

        flush = write

    monkeypatch.setattr(sys, "stderr", Closed())
    with pytest.warns(UserWarning, match="'progress'.* is out for the rest of the run.*BrokenPipeError"):
        result = Trainer(BARE, max_epochs=2).fit(Shown(), probe_batches(2))
    assert result.global_step == 4


@pytest.mark.parametrize(
    ("modules", "is_one"),
    [
        ({"ipykernel": ModuleType("ipykernel")}, False),  # imported, by whoever runs notebooks
        ({"IPython": SimpleNamespace(get_ipython=lambda: None)}, False),
        ({"IPython": SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))}, True),
    ],
    ids=["imported", "no shell", "kernel"],
)
def test_a_notebook_is_told_by_its_kernel(monkeypatch, modules, is_one):
    for name in ("IPython", "ipykernel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert in_notebook() is is_one
