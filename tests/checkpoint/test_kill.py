"""Killed at any instant, by a real SIGKILL in a real process, a run goes on to the same bits."""

import errno
import functools
import json
import multiprocessing
import os
import shutil
import signal
import time

import pytest

from lightloop import Plugin, hookimpl, option
from lightloop_plugins._handlers import Terminated
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage import local
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint import killing
from tests.checkpoint.faults import FaultyDisk, in_child
from tests.checkpoint.rig import LOADERS, Net, outcome, train, worker_noise
from tests.folders import in_memory


class Logged(Net):
    """Writes each batch down as it is trained on, where a killed process leaves it."""

    file: str

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        with open(self.file, "a") as stream:
            stream.write(json.dumps(self.trace[-1]) + "\n")
        while len(self.trace) == self.waits_in and self.trainer.loop.interrupt_reason is None:
            time.sleep(0.001)
        return loss


def run(folder, make, waits_in=None, **options):
    """One life of a run, which ends by writing what came out; batch number ``waits_in`` of it waits for a signal."""

    def module():
        net = Logged()
        net.file, net.waits_in = folder / "trace", waits_in
        return net

    module, trainer = train(folder / "checkpoints", make, resume="auto", module=module, **options)
    (folder / "outcome.new").write_text(json.dumps(outcome(module, trainer), default=str))
    os.rename(folder / "outcome.new", folder / "outcome")


def result(folder):
    """What came out, and the batches that were trained on, by their place; one that came twice was the same twice."""
    order = {}
    for line in (folder / "trace").read_text().splitlines():
        epoch, batch, index, loss = json.loads(line)
        assert order.setdefault((epoch, batch), (index, loss)) == (index, loss)
    return json.loads((folder / "outcome").read_text()), order


@pytest.fixture
def wanted(tmp_path):
    def make(loader, **options):
        (tmp_path / "whole").mkdir()
        run(tmp_path / "whole", loader, **options)  # here, so that children have imported all that it needs
        return result(tmp_path / "whole")

    return make


LIVES = 15
"""How many lives of each victim are killed."""


def test_there_are_fifty_kills_and_more():
    assert LIVES * len(killing.VICTIMS) >= 50


@pytest.fixture(scope="module")
def whole():
    """What comes out of each victim if nobody kills it, and how many places it passes."""
    memory = in_memory()

    @functools.cache
    def run(victim):
        folder = memory / victim
        places = killing.undisturbed(victim, folder)
        return killing.result(folder), places

    yield run
    shutil.rmtree(memory)


@pytest.mark.parametrize("victim", killing.VICTIMS)
def test_killed_again_and_again_until_it_has_finished(tmp_path, whole, victim):
    expected, places = whole(victim)
    killing.kill(victim, tmp_path / "killed", LIVES, victim, places)
    assert killing.differences(killing.result(tmp_path / "killed"), expected) == []


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", killing.VICTIMS)
def test_killed_in_every_batch_and_at_many_places(tmp_path, whole, victim, seed):
    expected, places = whole(victim)
    killing.kill(victim, tmp_path / "killed", 40, seed, places)
    assert killing.differences(killing.result(tmp_path / "killed"), expected) == []


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.torture), 6])
@pytest.mark.parametrize("victim", ["two optimizers", pytest.param("workers that augment", marks=pytest.mark.torture)])
def test_killed_again_and_again_while_it_resumes(tmp_path, whole, victim, step):
    """Each life gets a little further than the one before; none comes to its first batch."""
    expected, _ = whole(victim)
    folder = tmp_path / "killed"
    folder.mkdir()
    killing.kill_once(victim, folder, 700, 700, 99)
    trained = (folder / "trace").read_text()
    assert trained
    for at in range(1, 60, step):
        killing.kill_once(victim, folder, at, at, 0)
    assert (folder / "trace").read_text() == trained
    killing.undisturbed(victim, folder)
    assert killing.differences(killing.result(folder), expected) == []


@pytest.mark.torture
@pytest.mark.parametrize("victim", ["two optimizers", "saving on a thread"])
def test_stopped_for_a_while_it_loses_nothing_and_stays_the_writer(tmp_path, whole, victim):
    expected, places = whole(victim)
    folder = tmp_path / "stopped"
    folder.mkdir()
    here, there = multiprocessing.Pipe(duplex=False)
    with here, there, killing.started(victim, folder, there, 0, 10_000) as process:
        for _ in range(4):
            killing.hear(here, process, places // 5)
            os.kill(process.pid, signal.SIGSTOP)
            (lock,) = folder.glob("runs/x/*/checkpoints/.lock")
            with pytest.raises(CheckpointError, match=f"another process writes checkpoints .*: pid {process.pid} "):
                LocalFolder(lock.parent).open("another")
            time.sleep(1)
            os.kill(process.pid, signal.SIGCONT)
        process.join(killing.PATIENCE)
        assert process.exitcode == 0
    assert killing.differences(killing.result(folder), expected) == []


class KillsWorker(Plugin):
    """Kills the process that loads data and began last, so that there is a batch which it still has to read."""

    name = "kills_worker"
    at: int = option(6, "In which batch; -1 is never.")

    @hookimpl
    def before_fit(self, loop):
        self.others = set(multiprocessing.active_children())

    @hookimpl
    def before_batch(self, loop):
        if loop.total_batches == self.at:
            worker = max(set(multiprocessing.active_children()) - self.others, key=lambda process: process._identity)
            worker.kill()
            worker.join()

    @hookimpl
    def teardown(self, loop):
        del self.others


def test_a_worker_that_is_killed_ends_the_run_and_the_next_one_goes_on(tmp_path):
    make = functools.partial(worker_noise, 2)
    expected = outcome(*train(tmp_path / "whole", make))
    with pytest.raises(RuntimeError, match=r"worker \(pid.* (exited unexpectedly|is killed by signal)") as raised:
        train(tmp_path / "killed", make, [KillsWorker])
    assert any(note.startswith("at epoch 1, batch ") for note in raised.value.__notes__)
    assert outcome(*train(tmp_path / "killed", make, [KillsWorker(at=-1)], resume="auto")) == expected


OPTIONS = {"accumulate_grad_batches": 2, "val_check_interval": 3, "gradient_clip_val": 1.0, "epochs": 8}
SHORT = {"epochs": 1, "accumulate_grad_batches": 2, "limit_train_batches": 3, "save_last": 1}


def faulty(folder, monkeypatch, at, fault, number=errno.ENOSPC, **options):
    """A life whose file system has a fault at call ``at``; whether it came to that."""
    monkeypatch.setattr(local, "Disk", functools.partial(FaultyDisk, at, fault, number))
    status = in_child(lambda: run(folder, LOADERS["plain"], **SHORT, **options))
    monkeypatch.undo()
    return status


@pytest.mark.parametrize("fault", ["kill", "tear"])
def test_killed_at_calls_to_the_file_system_throughout_a_run(tmp_path, wanted, monkeypatch, fault):
    every_call(tmp_path, wanted, monkeypatch, fault, 13)


@pytest.mark.torture
@pytest.mark.parametrize("fault", ["kill", "tear"])
def test_killed_at_every_call_to_the_file_system_throughout_a_run(tmp_path, wanted, monkeypatch, fault):
    every_call(tmp_path, wanted, monkeypatch, fault, 1)


def every_call(tmp_path, wanted, monkeypatch, fault, stride):
    expected = wanted(LOADERS["plain"], **SHORT)
    for at in range(0, 10_000, stride):
        folder = tmp_path / str(at)
        folder.mkdir()
        if faulty(folder, monkeypatch, at, fault) == 0:
            break
        assert not (folder / "outcome").exists()
        assert in_child(lambda folder=folder: run(folder, LOADERS["plain"], **SHORT)) == 0
        assert result(folder) == expected
        assert not [name for name in os.listdir(folder / "checkpoints") if name.startswith((".tmp-", ".dead-"))]
    assert at > 50


def test_what_is_left_of_a_removal_goes_even_if_the_run_had_finished(tmp_path, wanted):
    expected = wanted(LOADERS["plain"], **SHORT)
    place = tmp_path / "whole" / "checkpoints"
    for name in (".dead-step-000000001-batch-000000002-1", ".tmp-x-step-000000009-2"):
        shutil.copytree(next(place.glob("step-*")), place / name)
    (place / ".bad-step-000000001").mkdir()
    assert in_child(lambda: run(tmp_path / "whole", LOADERS["plain"], **SHORT)) == 0
    assert result(tmp_path / "whole") == expected
    left = [name for name in os.listdir(place) if name.startswith((".tmp-", ".dead-", ".bad-"))]
    assert left == [".bad-step-000000001"]


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_once_ends_the_run_and_the_next_one_goes_on(tmp_path, wanted, monkeypatch, call):
    expected = wanted(LOADERS["plain"], **SHORT)
    folder, counted = tmp_path / "once", tmp_path / "counted"
    folder.mkdir(), counted.mkdir()
    disk = FaultyDisk()
    monkeypatch.setattr(local, "Disk", lambda: disk)
    run(counted, LOADERS["plain"], **SHORT)
    last = len(disk.calls) - disk.calls[::-1].index("mkdir")  # there the last save begins
    assert faulty(folder, monkeypatch, disk.calls.index(call, last), "once") == 1
    assert load_newest(LocalFolder(folder / "checkpoints")) is not None
    assert in_child(lambda: run(folder, LOADERS["plain"], **SHORT)) == 0
    assert result(folder) == expected


def batches_in(folder):
    return (folder / "trace").read_text().count("\n") if (folder / "trace").exists() else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_at_the_next_boundary_and_ends_the_process(tmp_path, wanted, number):
    expected = wanted(LOADERS["plain"], **OPTIONS)
    folder = tmp_path / "signalled"
    folder.mkdir()
    for _ in range(4):
        before = batches_in(folder)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(folder, LOADERS["plain"], 5, save_every=None, **OPTIONS)
                code = 0
            except Terminated as error:
                code = 128 + error.number
            finally:
                os._exit(code)
        while batches_in(folder) < before + 5:
            assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it has ended by itself"
            time.sleep(0.002)
        os.kill(pid, number)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + number
    assert in_child(lambda: run(folder, LOADERS["plain"], save_every=None, **OPTIONS)) == 0
    assert result(folder) == expected


def test_all_damaged_is_a_refusal_and_never_a_start_from_scratch(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    run(folder, LOADERS["plain"], **SHORT)
    for path in (folder / "checkpoints").glob("step-*/state.json"):
        path.write_bytes(path.read_bytes()[:-1])
    (folder / "outcome").unlink()
    with pytest.raises(CheckpointError, match="Nothing is trained from scratch"):
        run(folder, LOADERS["plain"], **SHORT)
