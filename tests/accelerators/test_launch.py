"""The processes of a run are started by torchrun, by the script itself, or by forking an interactive session."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_torchrun.py"


PATIENCE = 240
"""Seconds to wait for what takes a few on an idle machine."""
NOT_OURS = ("COV_CORE", "RANK", "WORLD", "PYTHONUNBUFFERED")  # the last would have lines of several processes mixed


def environ(**more):
    own = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **more}


def run(*command, stdin=None, **options):
    """What a command that ends has said; of one that does not, where its threads are."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    words = [str(part) for part in command]
    with subprocess.Popen(words, text=True, **{"env": environ(), **pipes, **options}) as process:
        try:
            out, err = process.communicate(stdin, PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            out, err = process.communicate()
            pytest.fail(f"it did not end within {PATIENCE} s:\n{out}\n{err}")
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def is_gone(pid):
    """Whether a process has ended, whoever may still have to be told of it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("launcher", ["itself", "torchrun"])
def test_the_example_ends_with_the_same_weights_on_both_ranks(launcher):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run(*([sys.executable] if launcher == "itself" else torchrun), EXAMPLE, "--epochs", "2")
    lines = re.findall(r"rank (\d) of 2: (\d+) steps, accuracy (\S+), weights (-?\d+\.\d{6})", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(rank for rank, *_ in lines) == ["0", "1"], done.stdout + done.stderr
    assert len({tuple(rest) for _, *rest in lines}) == 1
    assert lines[0][1] == "48"  # 750 samples for each, 24 batches, 2 epochs
    assert float(lines[0][2]) > 0.8


SCRIPT = """
import os, sys, time, torch
from lightloop import Module, Trainer
from lightloop.testing import Probe

class Acts(Probe):
    def training_step(self, batch, batch_idx, loop):
        if batch_idx == 2 and loop.world.rank == 1:
            if sys.argv[1] == "raise":
                raise ValueError("rotten luck")
        if sys.argv[1] == "sleep":
            os.write(1, f"pid {os.getpid()}\\n".encode())
            time.sleep(600)
        return super().training_step(batch)

if sys.argv[1] == "early" and "RANK" in os.environ:
    raise KeyError("before it begins")
Trainer(["-*", "ddp"], devices=2).fit(Acts(), [torch.tensor(float(i)) for i in range(9)])
print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "the first error was on rank 1: ValueError: rotten luck (at epoch 0, batch 2, rank 1)"),
        ("early", "RankError: rank 1, which was started from here, has ended with exit status 1"),
    ],
)
def test_a_child_that_fails_ends_its_parent(tmp_path, how, said):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run(sys.executable, script, how)
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr
    assert "done" not in done.stdout


def test_children_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), "sleep"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ()
    ) as parent:
        said, pids = [], set()
        while len(pids) < 2 and (line := parent.stdout.readline()):
            said.append(line)
            pids |= {int(pid) for pid in re.findall(r"^pid (\d+)$", line)}
        parent.send_signal(signal.SIGKILL)
    assert parent.pid in pids, said
    (child,) = pids - {parent.pid}
    until = time.monotonic() + PATIENCE
    while not is_gone(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert is_gone(child)


INTERACTIVE = """
import torch
from lightloop import Module, Trainer
from lightloop.testing import Probe
module = Probe()
trainer = Trainer(["-*", "ddp"], devices=2)
for _ in range(2):
    result = trainer.fit(module, [torch.tensor(1.0), torch.tensor(2.0)])
    print("fit", trainer.world_size, result.global_step, module.w.item())

print("once")
"""


def test_an_interactive_session_forks_for_each_fit():
    done = run(sys.executable, "-", stdin=INTERACTIVE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["fit 2 2 -3.0", "fit 2 2 -6.0", "once"]


def test_a_second_machine_needs_a_launcher():
    from lightloop import Trainer
    from lightloop.testing import Probe, probe_batches

    with pytest.raises(ValueError, match="num_nodes=2 needs a launcher on each machine, such as torchrun"):
        Trainer(["-*", "ddp"], num_nodes=2).fit(Probe(), probe_batches(1))


def test_what_is_asked_for_must_be_what_the_launcher_started(monkeypatch):
    from lightloop import Trainer
    from lightloop.testing import Probe, probe_batches

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="devices=2 and num_nodes=1 ask for 2 processes, and torchrun has started 4"):
        Trainer(["-*", "ddp"], devices=2).fit(Probe(), probe_batches(1))


NET = """
import torch
from lightloop.testing import TinyClassifier

def data():
    return [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(4)]
"""


def test_the_command_tells_once_how_it_went_and_names_the_run_by_the_class_of_the_module(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    done = run(
        sys.executable, "-m", "lightloop", "fit", "--module", "net.py:TinyClassifier", "--data", "net.py:data",
        "--strategy", "fsdp", "--devices", "2", "--plugins", "-progress",
        cwd=tmp_path, env=environ(LIGHTLOOP_RUNS=str(tmp_path / "runs")),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished after 1 epochs") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["TinyClassifier"]
