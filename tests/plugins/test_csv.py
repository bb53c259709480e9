import contextlib
import csv
import gc
import os
import signal
import subprocess
import sys
import tracemalloc
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightloop import Plugin, Trainer, hookimpl, option
from lightloop.testing import Probe, probe_batches
from lightloop_plugins.loggers.csv import Csv

BARE = ["-*", "run_dir", "log_every", "csv", "validation"]


class Logging(Probe):
    plus = 0.0

    def training_step(self, batch):
        self.log("x", batch + self.plus)
        if batch == 3:
            self.log("late/one", 0.1)
        return super().training_step(batch)

    def validation_step(self, batch):
        self.log("val", batch)


def rows(trainer):
    with open(trainer.run_dir / "metrics.csv", newline="") as file:
        return list(csv.reader(file))


def test_a_column_that_comes_later(tmp_path):
    trainer = Trainer(BARE, log_every_n_steps=1, default_root_dir=tmp_path)
    trainer.fit(Logging(), probe_batches(4), probe_batches(2))
    assert rows(trainer) == [
        ["step", "epoch", "x", "late/one", "val"],
        ["1", "0", "1.0", "", ""],
        ["2", "0", "2.0", "", ""],
        ["3", "0", "3.0", "0.1", ""],
        ["4", "0", "4.0", "", ""],
        ["4", "0", "", "", "1.5"],
    ]
    assert [path.name for path in trainer.run_dir.iterdir()] == ["metrics.csv"]


@pytest.mark.parametrize("flush", [1, 100])
def test_c63_after_an_error_every_row_is_on_disk(flush, tmp_path):
    class Failing(Logging):
        def training_step(self, batch):
            if batch == 7:
                raise RuntimeError("batch 7")
            return super().training_step(batch)

    trainer = Trainer(BARE, log_every_n_steps=1, flush_logs_every_n_steps=flush, default_root_dir=tmp_path)
    with pytest.raises(RuntimeError, match="batch 7"):
        trainer.fit(Failing(), probe_batches())
    assert [row[0] for row in rows(trainer)] == ["step", "1", "2", "3", "4", "5", "6"]


def test_a_killed_process_loses_no_row(tmp_path):
    program = """
import os, signal
from lightloop import Trainer
from lightloop.testing import Probe, probe_batches
from lightloop_plugins.loggers.csv import Csv
class Killed(Probe):
    def training_step(self, batch):
        if batch == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        self.log("x", batch)
        return super().training_step(batch)
Trainer(["-*", "run_dir", "log_every", "csv"], log_every_n_steps=1, run_version="it").fit(Killed(), probe_batches())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "LIGHTLOOP_RUNS": str(tmp_path)}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "Killed" / "it" / "metrics.csv").read_text().split() == [
        "step,epoch,x", "1,0,1.0", "2,0,2.0", "3,0,3.0", "4,0,4.0",
    ]  # fmt: skip


class Resume(Plugin):
    """Goes on in the given directory after step 2, which is batch 2."""

    name = "resume"

    def __init__(self, directory):
        self.directory = directory
        super().__init__()

    @hookimpl
    def before_fit(self, loop):
        loop.global_step = loop.total_batches = loop.batch_idx = 2
        next(p for p in loop.plugins if p.name == "run_dir").load_state_dict({"path": str(self.directory)})


@pytest.mark.parametrize(("plus", "kept"), [(0.0, False), (0.5, True)])
def test_c61_a_resumed_run_appends_and_keeps_beside_it_what_does_not_come_again(tmp_path, plus, kept):
    first = Trainer(BARE, log_every_n_steps=1, default_root_dir=tmp_path)
    first.fit(Logging(), probe_batches(4))
    before = rows(first)
    with open(first.run_dir / "metrics.csv", "a") as file:
        file.write("5,0")  # half a row of a killed process
    second = Trainer([*BARE, Resume(first.run_dir)], log_every_n_steps=1, default_root_dir=tmp_path)
    module = Logging()
    module.plus = plus
    second.fit(module, probe_batches(5), probe_batches(2))
    assert second.run_dir == first.run_dir
    assert [row[0] for row in rows(second)] == ["step", "1", "2", "3", "4", "5", "5"]
    aside = first.run_dir / "metrics.until_step_4.csv"
    assert aside.exists() == kept
    if kept:
        assert list(csv.reader(aside.read_text().splitlines()))[: len(before)] == before


class EachBatch(Plugin):
    """Writes a row for each batch, several of which have one step; ends the run in batch ``last``."""

    name = "each_batch"
    last: int = option(-1, "The batch in which the run ends.")

    @hookimpl
    def after_batch(self, loop):
        loop.write({"batch": loop.total_batches})
        if loop.total_batches == self.last:
            raise ZeroDivisionError


def test_a_resumed_run_leaves_out_later_rows_of_the_step_that_it_goes_on_from(tmp_path):
    options = {"log_every_n_steps": 0, "accumulate_grad_batches": 4, "save_every": "3 batches", "checkpoint_dir": None}
    plugins = [*BARE, "lockstep", "checkpoint", "accumulate"]

    def run(root, last, resume=None):
        trainer = Trainer([*plugins, EachBatch(last=last)], default_root_dir=tmp_path / root, resume=resume, **options)
        try:
            trainer.fit(Logging(), probe_batches(8))
        finally:
            found = rows(trainer)
        return found

    with pytest.raises(ZeroDivisionError):
        run("broken", 5)
    broken = run("broken", -1, "auto")
    assert [row[0] for row in broken] == ["step", "0", "0", "0", "1", "1", "1", "1", "2"]
    assert broken == run("whole", -1)


NAMES = ["step", "step_", "epoch", "epoch_", "time", " ", "a,b", 'a"b', "two\nlines", "größe/é", "\udc80", "None"]


def test_whatever_a_metric_is_called_it_has_a_column_of_its_own_and_a_resume_keeps_them(tmp_path):
    """One that is called as the row's step or epoch is "step_" or "epoch_", and so on."""

    class Named(Probe):
        def training_step(self, batch):
            for number, name in enumerate(names):
                self.log(name, batch * 1000 + number)
            return super().training_step(batch)

    names = [*NAMES, *(f"metric {number}" for number in range(1000))]
    columns = [f"{name}_" if name.rstrip("_") in ("step", "epoch") else name for name in names]

    def run(root, last, resume=None):
        plugins = [*BARE, "lockstep", "checkpoint", EachBatch(last=last)]
        trainer = Trainer(plugins, default_root_dir=tmp_path / root, log_every_n_steps=1, save_every=1, resume=resume)
        with contextlib.suppress(ZeroDivisionError):
            trainer.fit(Named(), probe_batches(3))
        with open(trainer.run_dir / "metrics.csv", newline="", encoding="utf-8", errors="surrogatepass") as file:
            return list(csv.DictReader(file))

    whole = run("whole", -1)
    steps = [row for row in whole if row[columns[0]]]
    assert [[float(row[name]) for name in columns] for row in steps] == [
        [batch * 1000 + number for number in range(len(names))] for batch in (1, 2, 3)
    ]
    assert [(row["step"], row["epoch"]) for row in steps] == [("1", "0"), ("2", "0"), ("3", "0")]
    run("broken", 1)
    assert run("broken", -1, "auto") == whole


def test_a_row_reads_the_metrics_once_however_many_there_are(tmp_path):
    class Counting(UserDict):
        reads = 0

        def keys(self):
            Counting.reads += 1
            return super().keys()

    class Wide(Plugin):
        name = "wide"

        @hookimpl
        def after_batch(self, loop):
            loop.write(Counting({f"norm_{index}": float(index) for index in range(50)}))

    trainer = Trainer([*BARE, Wide()], log_every_n_steps=0, default_root_dir=tmp_path)
    trainer.fit(Logging(), probe_batches(2))
    assert len(rows(trainer)[0]) == 51
    assert Counting.reads == 2


def test_the_old_name():
    with pytest.warns(DeprecationWarning, match="flush_logs_every_n_steps"):
        assert Trainer(log_save_interval=9).flush_logs_every_n_steps == 9


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="flush_logs_every_n_steps"):
        Trainer(flush_logs_every_n_steps=0)


COLUMNS = ["step", *(f"metric {number}" for number in range(5))]


DIGITS = "0." + "1" * 500


def huge(path, count):
    """A file of ``count`` rows of 2 KB, and of what it is long."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerow(COLUMNS)
        for step in range(1, count + 1):
            file.write(f"{step},{DIGITS},{DIGITS},{DIGITS},{DIGITS},0.5\r\n")
    return path.stat().st_size


def taken_up(directory, step, state=None):
    """The logger of a run that goes on at ``step``; the bytes that it has read, and those that it had in memory at once."""
    logger = Csv()
    if state is not None:
        logger.load_state_dict({"last_step": step, **state})
    gc.collect()
    before = bytes_read()
    tracemalloc.start()
    try:
        logger.open(SimpleNamespace(global_step=step, stage="fit" if step is not None else "test"), directory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return logger, bytes_read() - before, peak


def bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])


linux = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs a system that counts what is read")


@linux
def test_of_a_huge_file_no_more_is_read_than_its_end(tmp_path):
    """Of five gigabytes, nearly all of which are a hole."""
    path = tmp_path / "metrics.csv"
    huge(path, 0)
    os.truncate(path, 5 * 10**9)
    with open(path, "ab") as file:
        file.write(b"\n7,0.5\r\n8,0.25\r\n")
        size = file.tell()
        file.write(b"9,0.")  # half a row
    state = {"rows": 10**7, "columns": COLUMNS, "size": size}
    logger, read, memory = taken_up(tmp_path, 8, state)
    logger.write({"metric 3": 1.0}, 9)
    logger.flush()
    assert read < 10**7
    assert memory < 10**7
    assert (logger._rows, logger._last_step) == (10**7 + 1, 8)
    with open(path, "rb") as file:
        file.seek(size - 8)
        assert file.read() == b"8,0.25\r\n9,,,,1.0,\r\n"
    assert logger.state_dict()["size"] == path.stat().st_size
    logger.close("success")
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.csv"]


@linux
@pytest.mark.parametrize("kind", ["saved", "an older checkpoint", "by its name", "other columns", "evaluated"])
def test_a_file_is_taken_up_row_by_row(tmp_path, kind):
    path = tmp_path / "metrics.csv"
    size, whole = huge(path, 2000), huge(path, 3000)
    text = path.read_bytes()
    state = {"rows": 2000, "columns": COLUMNS, "size": size}
    if kind == "an older checkpoint":
        del state["size"]
    if kind == "other columns":  # one came later, so that the file was written anew
        path.write_bytes(text.replace(b"\r\n", b",late\r\n", 1))
        state["columns"] = COLUMNS[:-1]
    step = {"evaluated": None, "by its name": 2500}.get(kind, 2000)
    logger, read, memory = taken_up(tmp_path, step, None if kind in ("by its name", "evaluated") else state)
    logger._file.close()
    assert memory < whole / 2, "most of it was in memory at once"
    asides = [each.name for each in tmp_path.iterdir() if each != path]
    assert asides == ([] if kind == "evaluated" else ["metrics.until_step_3000.csv"])
    with open(path, newline="") as file:
        found = [int(row["step"]) for row in csv.DictReader(file)]
    assert found == list(range(1, 1 + {"evaluated": 3000, "by its name": 2500}.get(kind, 2000)))
    assert logger._columns == (COLUMNS[:-1] if kind == "other columns" else COLUMNS)
    if kind == "saved":  # it is copied, and what follows is read
        assert read < 1.1 * whole
    tracemalloc.start()
    logger._widen(["more"])
    logger.close("success")
    assert tracemalloc.get_traced_memory()[1] < whole / 2
    tracemalloc.stop()
    assert len(asides) == len([each for each in tmp_path.iterdir() if each != path])


@pytest.mark.parametrize("wrong", [{"size": 3}, {"size": 10**9}, {"size": 30}, {"rows": 2, "size": 70}])
def test_a_length_that_the_file_cannot_have_had_is_not_relied_on(tmp_path, wrong):
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,x\r\n1,0.111\r\n2,0.222\r\n3,0.333\r\n4,0.444\r\n5,0.555\r\n")
    logger, _, _ = taken_up(tmp_path, 3, {"rows": 3, "columns": ["step", "x"], **wrong})
    rows = wrong.get("rows", 3)
    logger.close("failed")
    assert path.read_bytes().split() == [b"step,x", b"1,0.111", b"2,0.222", b"3,0.333"][: rows + 1]


@pytest.mark.parametrize(
    "text", [b"", b"ste", b'step,"two\nli', b"\xff\xfe", b"1,2,3", b"\0" * 1000, b"x" * 10**5 + b"\n"]
)
def test_a_file_that_is_none_of_ours_is_taken_up_as_one_without_rows(tmp_path, text):
    path = tmp_path / "metrics.csv"
    path.write_bytes(text)
    logger, _, _ = taken_up(tmp_path, 2)
    logger.write({"x": 1.0}, 3)
    logger.close("success")
    with open(path, newline="", errors="replace") as file:
        found = list(csv.DictReader(file))
    assert [(row.get("step"), row["x"]) for row in found if row["x"]] == [("3", "1.0")]
