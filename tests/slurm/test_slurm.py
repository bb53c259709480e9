"""Two nodes of SLURM: a job that is told that its time is over, or has to make way, goes on to the same bits."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "scancel", "sinfo")
LACKING = [name for name in PROGRAMS if not shutil.which(name)]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(LACKING), reason=f"SLURM is not installed: there is no {', '.join(LACKING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a cluster of one's own can be started by root alone"),
]
PATIENCE = 120
"""Seconds to wait for what takes a few on an idle machine."""


@pytest.fixture(scope="module")
def cluster():
    """The environment in which SLURM's programs find the cluster."""
    folder = tempfile.mkdtemp(prefix="lightloop-slurm-")
    script = ["bash", str(ROOT / "scripts" / "slurm_cluster.sh")]
    try:
        up = subprocess.run([*script, "up", folder], stdout=subprocess.PIPE, text=True, check=False)
        assert up.returncode == 0
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "LIGHTLOOP"))}
        yield {**own, "SLURM_CONF": up.stdout.strip(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    finally:
        subprocess.run([*script, "down", folder], check=True)
        shutil.rmtree(folder, ignore_errors=True)


TORCHRUN = (
    "torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --local-addr=127.0.0.1 "
    "--rdzv-endpoint=127.0.0.1:$((20000 + SLURM_JOB_ID * 10 + ${SLURM_RESTART_COUNT:-0})) "
    "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
)
"""As in the guide, but that both nodes are on one host."""


class Job:
    def __init__(self, environ, work, signal, launcher="python"):
        work.mkdir()
        self.environ, self.work = {**environ, "WORK": str(work)}, work
        program = f"{Path(sys.executable).parent}/{launcher} {ROOT / 'tests' / 'slurm' / 'job.py'}"
        script = f"srun --kill-on-bad-exit=1 {program} {signal}"
        options = ["--parsable", "--requeue", "-N2", "--ntasks-per-node=1", "--job-name=train", "--open-mode=append"]
        self.id = self.run("sbatch", *options, f"--output={work}/log", "--wrap", script).strip()

    def run(self, *command):
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False, cwd=self.work)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, name):
        file = self.work / name
        return file.read_text() if file.exists() else ""

    def wait(self, until, what):
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end, f"{what} has not come: {self.show()}\n{self.read('log')}"
            time.sleep(0.1)

    def show(self):
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "show", "job", self.id, "-o")))

    def wait_for_end(self):
        self.wait(lambda: self.show()["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), "the end of the job")

    def outcome(self):
        self.wait_for_end()
        assert self.show()["JobState"] == "COMPLETED", self.read("log")
        return json.loads(self.read("outcome"))


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    job = Job(cluster, tmp_path_factory.mktemp("undisturbed") / "work", "SIGUSR1")
    outcome = job.outcome()
    assert outcome[:2] == ["finished", 40]
    return outcome


def test_the_signal_before_the_end_of_its_time(cluster, tmp_path, undisturbed):
    job = Job(cluster, tmp_path / "work", "SIGUSR1")
    job.wait(lambda: job.read("trace").count("batch") >= 25, "the 25th batch")
    job.run("scancel", "--signal=USR1", job.id)  # to the steps of the job alone, as sbatch --signal=USR1@60 does
    assert job.outcome() == undisturbed
    check(job)


def test_a_job_that_has_to_make_way(cluster, tmp_path, undisturbed):
    job = Job(cluster, tmp_path / "work", "SIGTERM")
    job.wait(lambda: job.read("trace").count("batch") >= 25, "the 25th batch")
    job.run("srun", "-p", "urgent", "-N2", "--ntasks-per-node=2", "--exclusive", "sleep", "1")
    assert job.outcome() == undisturbed
    check(job)


@pytest.mark.parametrize("signal", ["SIGUSR1", "SIGTERM"])
def test_agents_of_torchrun_pass_the_signal_on(cluster, tmp_path, undisturbed, signal):
    job = Job(cluster, tmp_path / "work", signal, TORCHRUN)
    job.wait(lambda: job.read("trace").count("batch") >= 25, "the 25th batch")
    if signal == "SIGUSR1":
        job.run("scancel", "--signal=USR1", job.id)
    else:
        job.run("srun", "-p", "urgent", "-N2", "--ntasks-per-node=2", "--exclusive", "sleep", "1")
    assert job.outcome() == undisturbed
    check(job)


def test_a_job_that_is_cancelled_is_saved_and_stays_cancelled(cluster, tmp_path):
    job = Job(cluster, tmp_path / "work", "SIGTERM")
    job.wait(lambda: job.read("trace").count("batch") >= 25, "the 25th batch")
    job.run("scancel", job.id)
    job.wait_for_end()
    assert (job.show()["JobState"], job.show()["Restarts"]) == ("CANCELLED", "0")
    (folder,) = (job.work / "runs" / "Net" / f"slurm-{job.id}" / "checkpoints").glob("step-*")
    assert int(folder.name.split("-")[-1]) >= 25


def check(job):
    """It was gone on with in the midst of an epoch, by both processes, in the same directory, and no batch came twice."""
    assert job.show()["Restarts"] == "1"
    lines = [line.split() for line in job.read("trace").splitlines()]
    batches = [(int(start), int(number)) for what, start, _, number in lines if what == "batch"]
    assert [number for _, number in batches] == list(range(80)), batches
    assert sorted({start for start, _ in batches}) == [0, 1]
    begins = [(start, size, number) for what, start, size, number in lines if what == "begins"]
    assert ("1", "2", str(next(number for start, number in batches if start == 1))) in begins
    assert [path.name for path in (job.work / "runs" / "Net").iterdir()] == [f"slurm-{job.id}"]
