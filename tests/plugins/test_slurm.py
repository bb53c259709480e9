"""A job that is put back into the queue; a program on PATH stands for SLURM's own, which tests/slurm has."""

import json
import os
import pickle
import signal
import time

import pytest

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import probe_batches
from lightloop.testing.ranks import run_ranks
from lightloop_plugins import slurm
from lightloop_plugins._handlers import Terminated
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.slurm import Slurm, job_id
from tests.checkpoint.rig import LOADERS, Net, outcome, scramble
from tests.signalled import Signalled

BARE = ["-*", "run_dir", "checkpoint", "resume"]
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then
    echo "JobId=$3 JobState=${{STATE:-RUNNING}} Reason=${{REASON:-None}} PreemptTime=None"
    exit 0
fi
echo "$@" >> {folder}/calls
ls -d "$LIGHTLOOP_RUNS"/*/*/checkpoints/*/MANIFEST.json > {folder}/saved
echo "not today" >&2
exit ${{STATUS:-0}}
"""


@pytest.fixture(autouse=True)
def job(tmp_path, monkeypatch):
    """As in job 77, with a ``scontrol`` that writes down how it is called; the file that it writes."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "scontrol"
    program.write_text(SCONTROL.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("LIGHTLOOP_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setattr(slurm, "_FITS", {})
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2)}
    yield tmp_path / "calls"
    assert before == {number: signal.getsignal(number) for number in before}


def calls(job):
    return job.read_text().splitlines() if job.exists() else []


class Logged(Net):
    file = None

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        with open(self.file, "a") as stream:
            stream.write(json.dumps(self.trace[-1]) + "\n")
        return loss


def life(folder, **options):
    """One start of the job's script."""
    scramble(0)
    module = Logged()
    module.file = folder / "trace"
    scramble(1)
    trainer = Trainer(
        ["-progress", "-model_summary"], max_epochs=8, accumulate_grad_batches=2, save_every=None, **options
    )
    trainer.fit(module, LOADERS["plain"](), LOADERS["list"]())
    (folder / "outcome").write_text(json.dumps(outcome(module, trainer), default=str))


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def begin(folder, **options):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            life(folder, **options)
            code = 0
        except Terminated as error:
            code = 128 + error.number
        finally:
            os._exit(code)
    return pid


def lines(path):
    return path.read_text().count("\n") if path.exists() else 0


def trained(folder):
    order = {}
    for line in (folder / "trace").read_text().splitlines():
        epoch, batch, index, loss = json.loads(line)
        assert order.setdefault((epoch, batch), (index, loss)) == (index, loss)
    return json.loads((folder / "outcome").read_text()), order


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_job_is_put_back_each_time_and_goes_on_to_the_same_bits(tmp_path, job, monkeypatch, name):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir(), broken.mkdir()
    life(whole, enable_checkpointing=False)
    assert not calls(job)
    for start in range(4):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(start))
        before = lines(broken / "trace")
        pid = begin(broken, auto_requeue=True, requeue_signal=name)
        until = time.monotonic() + 60
        while start < 3 and lines(broken / "trace") < before + 7 and time.monotonic() < until:
            time.sleep(0.002)
        if start < 3:
            os.kill(pid, getattr(signal, name))
        assert status_of(pid) == (128 + getattr(signal, name) if start < 3 else 0)
    assert calls(job) == ["requeue 77"] * 3
    assert trained(broken) == trained(whole)
    assert [path.name for path in (tmp_path / "runs" / "Logged").glob("slurm*")] == ["slurm-77"]


def fit(*names, module=None, plugins=(), **options):
    module = module or Signalled(*names)
    trainer = Trainer([*BARE, *plugins], auto_requeue=True, save_every=None, max_epochs=-1, max_steps=5, **options)
    try:
        trainer.fit(module, probe_batches(5))
        code = 0
    except Terminated as error:
        code = 128 + error.number
    pickle.loads(pickle.dumps(trainer))
    checkpoint = trainer.plugin("checkpoint").last_path
    return code, checkpoint and checkpoint.split(os.environ["LIGHTLOOP_RUNS"])[-1]


SAVED = "/Signalled/slurm-77/checkpoints/step-000000003-batch-000000003"


@pytest.mark.parametrize(
    ("names", "status", "made"),
    [
        (["SIGUSR1"], 138, ["requeue 77"]),
        (["SIGUSR1", "SIGTERM", "SIGTERM", "SIGUSR1"], 138, ["requeue 77"]),  # SLURM ends what it takes back by SIGTERM
        (["SIGTERM", "SIGTERM"], 143, []),  # it is SLURM that decides what becomes of the job
        (["SIGTERM", "SIGUSR1"], 138, ["requeue 77"]),
    ],
)
def test_no_signal_keeps_the_run_from_being_saved(job, names, status, made):
    assert fit(*names) == (status, SAVED)
    assert calls(job) == made


@pytest.mark.parametrize(
    ("state", "reason", "made"),
    [("COMPLETING", "None", []), ("CANCELLED", "None", []), ("COMPLETING", "TimeLimit", ["requeue 77"])],
)
def test_a_job_that_was_cancelled_is_saved_and_not_put_back(job, monkeypatch, state, reason, made):
    monkeypatch.setenv("STATE", state)
    monkeypatch.setenv("REASON", reason)
    assert fit("SIGTERM", requeue_signal="SIGTERM") == (143, SAVED)
    assert calls(job) == made


@pytest.mark.parametrize("threaded", [False, True])
def test_the_job_is_put_back_when_the_checkpoint_is_there(tmp_path, threaded):
    fit("SIGUSR1", async_save=threaded)
    assert (tmp_path / "saved").read_text().split() == [f"{tmp_path}/runs{SAVED}/MANIFEST.json"]


def test_a_run_that_no_signal_comes_to_ends_as_always(job):
    assert fit() == (0, SAVED.replace("3", "5"))
    assert not calls(job)


def test_what_is_left_is_trained_when_the_job_starts_again(monkeypatch):
    fit("SIGUSR1")
    monkeypatch.setattr(slurm, "_FITS", {})
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    module = Signalled()
    assert fit(module=module) == (0, SAVED.replace("3", "5"))
    assert len(module.seen) == 2


@pytest.mark.parametrize("place", ["outside", "bash", "interactive"])
def test_elsewhere_than_in_a_batch_job_it_does_nothing(job, monkeypatch, place):
    if place == "outside":
        monkeypatch.delenv("SLURM_JOB_ID")
    else:
        monkeypatch.setenv("SLURM_JOB_NAME", place)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for number in range(2):  # nothing is gone on with
        saved = SAVED.replace("slurm-77", f"version_{number}")
        assert fit("SIGUSR1", plugins=["signals"]) == (138, saved)  # by the plugin signals
    assert not calls(job)


def test_a_handler_of_the_users_is_called_once(job):
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        assert fit("SIGUSR1", plugins=["signals"]) == (138, SAVED)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (seen, calls(job)) == ([signal.SIGUSR1], ["requeue 77"])


def test_handlers_are_put_back_after_an_error(job):
    class Boom(Signalled):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(module=Boom("SIGUSR1"))
    assert not calls(job)


def test_where_the_job_cannot_be_put_back_the_error_says_so(monkeypatch):
    monkeypatch.setenv("STATUS", "1")
    with pytest.raises(
        RuntimeError, match=r"the run is saved, .*'scontrol', 'requeue', '77'\]' returned .* 1. not today"
    ):
        fit("SIGUSR1")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(slurm, "_FITS", {"77": 1})
    with pytest.raises(RuntimeError, match=r"the run is saved, .*No such file or directory: 'scontrol'"):
        fit("SIGUSR1")


def test_runs_are_called_after_their_job_unless_the_user_names_them(monkeypatch):
    assert [fit()[1].split("/")[2] for _ in range(2)] == ["slurm-77", "slurm-77-2"]
    assert fit(run_version="mine")[1].split("/")[2] == "mine"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "70")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    assert job_id() == "70_4"
    assert fit()[1].split("/")[2] == "slurm-70_4"


def test_each_fit_of_a_script_goes_on_from_its_own(monkeypatch):
    fit(), fit("SIGUSR1")
    monkeypatch.setattr(slurm, "_FITS", {})
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    first, second = Signalled(), Signalled()
    fit(module=first), fit(module=second)
    assert (first.w.item(), len(first.seen), second.w.item(), len(second.seen)) == (-15.0, 0, -15.0, 2)


def test_the_checkpoint_of_another_job_is_gone_on_with_only_if_the_user_says_so(tmp_path, monkeypatch):
    place = str(tmp_path / "common")
    fit("SIGUSR1", checkpoint_dir=place)
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    assert fit("SIGUSR1", checkpoint_dir=place, resume="auto")[0] == 0, "two batches are left, and none is the third"
    monkeypatch.setenv("SLURM_JOB_ID", "79")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(CheckpointError, match=r"newest checkpoint is of slurm-78, and this is slurm-79, started again"):
        fit(checkpoint_dir=place)


class OnOne(Signalled):
    def training_step(self, batch, batch_idx, loop):
        if loop.world.rank == 0:
            self.names = ()
        return super().training_step(batch, batch_idx)


class Came(Plugin):
    name = "came"

    @hookimpl
    def after_fit(self, loop):
        print(loop.world.rank, loop.global_step, loop.interrupt_reason, flush=True)


def on_ranks():
    Trainer([*BARE, "ddp", Came], auto_requeue=True, max_epochs=2).fit(OnOne("SIGUSR1"), probe_batches(5))


@pytest.mark.processes
def test_a_signal_on_one_rank_ends_all_and_rank_0_puts_the_job_back(job, tmp_path, monkeypatch):
    names = ("PATH", "LIGHTLOOP_RUNS", "SLURM_JOB_ID", "SLURM_JOB_NAME")
    outcomes = run_ranks(with_environment, 2, {name: os.environ[name] for name in names}, on_ranks)
    assert [each.error.splitlines()[0] for each in outcomes] == ["SystemExit: 138"] * 2
    assert calls(job) == ["requeue 77"]
    saved = tmp_path / "runs" / "OnOne" / "slurm-77" / "checkpoints"
    assert (saved / "step-000000003-batch-000000003").is_dir()


def with_environment(environ, function):
    os.environ.update(environ)
    return function()


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"requeue_signal \(slurm.signal\) must be the name of a signal"):
        Slurm(signal="USR1")
    with pytest.raises(TypeError, match="nothing turns that on: give auto_requeue"):
        Trainer(requeue_signal="SIGTERM")
    assert "slurm" not in [plugin.name for plugin in Trainer().plugins]
