"""Of all that want to write in a run's directory at once, one does, and the others have changed no byte of it."""

import contextlib
import fcntl
import multiprocessing
import os
import random
import signal
import time
import warnings

import pytest
import torch

from lightloop import Module, Plugin, Trainer, hookimpl, option
from lightloop.testing import probe_batches
from lightloop.toolkit import BusyError
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint import killing
from tests.checkpoint.faults import in_child

QUIET = ["-progress", "-model_summary"]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*what differs:UserWarning"
)  # a plugin of these tests is in one run only


class Net(Module):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch):
        self.log("loss", loss := (self.weight * torch.rand(()) - batch).square())
        return loss

    def test_step(self, batch):
        self.log("test", self.weight.detach())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def files(root):
    """Every file below ``root``: what is in it, and when that was written."""
    paths = sorted(path for path in root.rglob("*") if path.name != ".lock")
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in paths}


def trainer(root, *plugins, **options):
    options = {"default_root_dir": root, "save_every": 2, "log_every_n_steps": 1, "max_epochs": 2, "seed": 3, **options}
    return Trainer([*QUIET, *plugins], **options)


class Meanwhile(Plugin):
    """Does something in the midst of a run, after batch 5."""

    name = "meanwhile"

    def __init__(self, work):
        self.work = work
        super().__init__()

    @hookimpl
    def before_batch(self, loop):
        if loop.total_batches == 5:
            self.work(loop)


WAYS = {
    "resumed as the newest": ({}, {"resume": "auto"}),
    "resumed by its path": ({}, {"resume": "run"}),
    "of the same name": ({"run_version": "it"}, {"run_version": "it"}),
    "resumed and of the same name": ({"run_version": "it"}, {"run_version": "it", "resume": "auto"}),
    "with the same folder of checkpoints": ({"checkpoint_dir": "there"}, {"checkpoint_dir": "there"}),
    "resumed from the same folder": ({"checkpoint_dir": "there"}, {"checkpoint_dir": "there", "resume": "auto"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_second_one_is_refused_and_has_changed_nothing(tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    first, second = WAYS[way]
    tried = []

    def meanwhile(loop):
        run = loop.trainer.run_dir
        folder = tmp_path / "there" if first.get("checkpoint_dir") else run / "checkpoints"
        newest = max(folder.glob("step-*"))
        options = {**second, "resume": str(run)} if second.get("resume") == "run" else second
        whole = (newest / "state.json").read_bytes()
        (newest / "state.json").write_bytes(whole[:-1])  # one that finds it may put it aside, if it may write
        before = files(tmp_path)

        def refused():
            with pytest.raises(
                (BusyError, CheckpointError), match=r"(Trainer of this|another) process writes .*pid \d+ on"
            ):
                trainer(tmp_path / "runs", **options).fit(Net(), probe_batches(4))
            assert files(tmp_path) == before

        refused()
        tried.append(in_child(refused))
        (newest / "state.json").write_bytes(whole)

    one = trainer(tmp_path / "runs", Meanwhile(meanwhile), **first)
    one.fit(Net(), probe_batches(4))
    assert tried == [0]
    assert not list(tmp_path.rglob(".bad-*"))
    assert not (one.run_dir / ".lock").exists()
    if "resume" in second:
        options = {**second, "resume": str(one.run_dir)} if second["resume"] == "run" else second
        again = trainer(tmp_path / "runs", **{**options, "max_epochs": 3})
        assert again.fit(Net(), probe_batches(4)).global_step == 12
        assert again.run_dir == one.run_dir


def test_a_run_that_reads_its_own_checkpoints_stays_the_writer(tmp_path):
    def meanwhile(loop):
        run = loop.trainer.run_dir
        Net.load_from_checkpoint(run)
        trainer(tmp_path).test(Net(), probe_batches(2), resume=str(run))
        trainer(tmp_path).test(Net(), probe_batches(2), resume="auto")
        for path in (run / ".lock", run / "checkpoints" / ".lock"):
            path.read_bytes()

        def refused():
            with pytest.raises(BusyError):
                trainer(tmp_path, resume=str(run)).fit(Net(), probe_batches(4))
            with pytest.raises(CheckpointError, match="another process writes checkpoints"):
                LocalFolder(run / "checkpoints").open("other")

        tried.append(in_child(refused))

    tried = []
    trainer(tmp_path, Meanwhile(meanwhile)).fit(Net(), probe_batches(4))
    assert tried == [0]


def test_the_right_is_given_back_however_a_run_ends(tmp_path):
    def fail(loop):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, Meanwhile(fail), run_version="it").fit(Net(), probe_batches(4))

    class Refuses(Plugin):
        name, after = "refuses", ("run_dir", "checkpoint", "resume")

        @hookimpl
        def setup(self, loop):
            assert (tmp_path / "Net" / "it" / ".lock").exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, Refuses, run_version="it", resume="auto").fit(Net(), probe_batches(4))
    one = trainer(tmp_path, run_version="it", resume="auto")
    one.fit(Net(), probe_batches(4))
    one.test(Net(), probe_batches(2))
    assert not (tmp_path / "Net" / "it" / ".lock").exists()


def test_runs_that_begin_in_the_same_moment_have_directories_of_their_own(tmp_path, monkeypatch):
    """All of them have seen that there is no version_0 when the first one makes it."""
    trainer(tmp_path / "here").fit(Net(), probe_batches(2))  # so that children have imported all that they need
    together, make = multiprocessing.get_context("fork").Barrier(4), os.mkdir

    def mkdir(path, *how, **more):
        if os.path.basename(path) == "version_0":
            together.wait(60)
        make(path, *how, **more)

    def work():
        try:
            one = trainer(tmp_path, max_epochs=1)
            one.fit(Net(), probe_batches(2))
            (one.run_dir / str(os.getpid())).touch()
            os._exit(0)
        finally:
            os._exit(1)

    monkeypatch.setattr(os, "mkdir", mkdir)
    pids = [pid for _ in range(4) if (pid := os.fork()) or work()]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    runs = sorted((tmp_path / "Net").iterdir())
    assert [run.name for run in runs] == [f"version_{number}" for number in range(4)]
    assert sorted(int(path.name) for run in runs for path in run.iterdir() if path.name.isdigit()) == sorted(pids)


class Fate(Plugin):
    """Is sure to be alone while a run goes on, and kills it in a batch."""

    name, after = "fate", ("run_dir", "checkpoint", "resume", "logger")
    batch: int = option(-1, "Which; -1 is none.")
    witness: str = option("", "A file that one process at a time has locked.")

    @hookimpl
    def before_epoch(self, loop):
        if self.held is None:
            self.held = open(self.witness, "w")  # noqa: SIM115
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if another writes

    def validate(self):
        self.held = None

    @hookimpl
    def before_batch(self, loop):
        time.sleep(0.002)
        if loop.total_batches == self.batch:
            os.kill(os.getpid(), signal.SIGKILL)

    @hookimpl
    def teardown(self):
        if self.held is not None:
            self.held.close()
            self.held = None


REFUSED, READ = 40, 41
LOGGERS = ["csv", "tensorboard"]


def life(root, seed):
    """One process: it resumes the run, and may be killed; or it only reads."""
    chance = random.Random(seed)
    time.sleep(chance.uniform(0, 0.15))
    warnings.simplefilter("ignore")
    what = chance.choice(["train", "train", "killed", "read"])
    if what == "read":
        with_any = LocalFolder(root / "Net" / "it" / "checkpoints")
        for _ in range(5):
            with contextlib.suppress(CheckpointError):  # it was deleted meanwhile
                load_newest(with_any, aside=False)
        return READ
    plugin = Fate(batch=chance.randrange(12) if what == "killed" else -1, witness=str(root / "witness"))
    try:
        trainer(root, plugin, run_version="it", resume="auto", logger=LOGGERS).fit(Net(), probe_batches(6))
    except (BusyError, CheckpointError) as error:
        return REFUSED if "process writes" in str(error) else 2
    return 0


def together(root, seed, rounds):
    """Let two to four processes at a time begin at random moments, and the run come to its end; how they ended."""
    chance, codes = random.Random(seed), []
    for _ in range(rounds):
        pids = []
        for _ in range(chance.randrange(2, 5)):
            seed = chance.random()
            if (pid := os.fork()) == 0:
                code = 1
                try:
                    code = life(root, seed)
                finally:
                    os._exit(code)
            pids.append(pid)
        codes += [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        check(root / "Net" / "it")
    assert set(codes) <= {0, REFUSED, READ, -signal.SIGKILL}
    return codes


def check(run):
    """Every file that is there is whole."""
    folder = LocalFolder(run / "checkpoints")
    for name in folder.names():
        folder.verify(name)
    assert not list(run.rglob(".bad-*"))


@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.torture)])
def test_of_processes_that_begin_at_random_moments_one_writes_and_its_files_are_whole(tmp_path, rounds):
    whole = trainer(tmp_path / "whole", Fate(witness=str(tmp_path / "witness")), run_version="it", logger=LOGGERS)
    whole.fit(Net(), probe_batches(6))
    expected, codes = killing.files(whole.run_dir), []
    for number in range(1 + rounds // 10):  # a run is over after some
        codes += together(tmp_path / str(number), number, min(rounds, 10))
        root = tmp_path / str(number)
        last = trainer(root, Fate(witness=str(root / "witness")), run_version="it", resume="auto", logger=LOGGERS)
        last.fit(Net(), probe_batches(6))
        run = root / "Net" / "it"
        assert killing.differences(killing.files(run), expected) == []
        check(run)
    if rounds > 10:
        assert set(codes) == {0, REFUSED, READ, -signal.SIGKILL}


def test_an_evaluation_does_not_write_where_a_run_does(tmp_path):
    def meanwhile(loop):
        with pytest.raises(BusyError, match="another Trainer of this process"):
            trainer(tmp_path, run_version="it").test(Net(), probe_batches(2))

    trainer(tmp_path, Meanwhile(meanwhile), run_version="it").fit(Net(), probe_batches(4))
