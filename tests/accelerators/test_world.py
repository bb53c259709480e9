"""What ranks tell one another, and what happens where they are out of step."""

import os
import time

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches
from lightloop.testing.ranks import run_ranks, values_of
from lightloop_plugins.accelerators._launcher.environment import environment, first_host, node_address

pytestmark = pytest.mark.processes


class Ask(Probe):
    """Answers with what ``ask(world)`` says in its first step."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.answer = ask, None

    def training_step(self, batch, loop):
        self.answer = self.ask(loop.world)
        return batch * self.w


def asked(ask):
    module = Ask(ask)
    Trainer(["-*", "ddp"], ddp_timeout=60.0).fit(module, [torch.tensor(1.0)])
    return module.answer


def everything(world):
    r = world.rank
    return {
        "sizes": (world.rank, world.local_rank, world.size, world.is_main),
        "sum": world.reduce(torch.tensor([1.0, r])).tolist(),
        "mean": world.reduce(torch.tensor(r), "mean").item(),
        "max": world.reduce(torch.tensor(r == 1), "max").item(),
        "min": world.reduce(torch.tensor(r, dtype=torch.int64), "min").item(),
        "bf16": world.reduce(torch.tensor(1.5, dtype=torch.bfloat16)).item(),
        "nobody": world.agree(None, None, None),
        "first": world.agree(None if r == 0 else f"r{r}", "mine" if r == 1 else None, f"all {r}"),
        "broadcast": world.broadcast({"from": r}, 1),
        "gather": world.gather((r, "x" * r)),
        "barrier": world.barrier(),
    }


def ask_everything():
    return asked(everything)


def test_every_kind_of_message():
    def expected(r):
        return {
            "sizes": (r, r, 2, r == 0),
            "sum": [2.0, 1.0],
            "mean": 0.5,
            "max": True,
            "min": 0,
            "bf16": 3.0,
            "nobody": (None, None, None),
            "first": ("r1", "mine", "all 0"),
            "broadcast": {"from": 1},
            "gather": [(0, ""), (1, "x")],
            "barrier": None,
        }

    assert values_of(run_ranks(ask_everything, 2)) == [expected(0), expected(1)]


class Guarded(Plugin):
    name = "guarded"

    @hookimpl
    def after_batch(self, loop):
        if loop.world.rank == 0:
            loop.world.gather("saving")


def guarded():
    Trainer(["-*", "ddp", Guarded()], ddp_timeout=60.0).fit(Probe(), [torch.tensor(1.0)])


def test_a_call_under_a_rank_guard_is_an_error_on_all_ranks():
    outcomes = run_ranks(guarded, 2)
    for outcome in outcomes:
        assert "RankError: the ranks are out of step: rank 0 is in gather, called from test_world.py:" in outcome.error
        assert "in after_batch; rank 1 is in agree (3)" in outcome.error
        assert "look for an `if rank == 0`" in outcome.error
        assert outcome.seconds < 60, "nobody waited for the time-out"


class GuardedStep(Probe):
    def training_step(self, batch, loop):
        if loop.world.rank == 0:
            loop.world.barrier()
        return batch * self.w


def guarded_step():
    Trainer(["-*", "ddp", "lockstep"], ddp_timeout=60.0, skip_together=True).fit(GuardedStep(), [torch.tensor(1.0)])


def test_inside_a_training_step_it_is_found_where_ranks_skip_together():
    for outcome in run_ranks(guarded_step, 2):
        assert "rank 0 is in barrier, called from test_world.py:" in outcome.error
        assert outcome.seconds < 60, "nobody waited for the time-out"


def twice():
    return [asked(everything)["gather"] for _ in range(3)]


def test_runs_may_follow_one_another():
    assert values_of(run_ranks(twice, 2)) == [[[(0, ""), (1, "x")]] * 3] * 2


def too_few():
    began = time.monotonic()
    Trainer(["-*", "ddp"], ddp_timeout=3.0).fit(Probe(), [torch.tensor(1.0)])
    return time.monotonic() - began


def alone():
    if os.environ["RANK"] == "1":
        return None
    return too_few()


def test_a_rank_that_does_not_come_is_an_error_in_time():
    first, second = run_ranks(alone, 2)
    assert second.error is None
    assert "RankError: rank 0 waited 3 s on" in first.error
    assert "and 1 of the 2 processes that torchrun announces have come" in first.error


SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[02-03]"}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


def test_launchers_are_known_by_their_environment():
    assert environment({}) is None
    assert environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None, "a batch script, not a step of it"
    torchrun = environment({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "7"})
    assert (torchrun.rank, torchrun.local_rank, torchrun.size, torchrun.address, torchrun.port) == (5, 1, 8, "a", 7)
    slurm = environment({**SLURM, "SLURM_JOB_ID": "12"})
    assert (slurm.rank, slurm.local_rank, slurm.size, slurm.address, slurm.launcher) == (3, 1, 4, "n02", "srun")
    mpi = environment({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert (mpi.rank, mpi.local_rank, mpi.size, mpi.address, mpi.launcher) == (1, 1, 2, "127.0.0.1", "mpirun")
    with pytest.raises(RuntimeError, match="set MASTER_ADDR"):
        environment({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n1", "n1"),
        ("n[1-2]", "n1"),
        ("node-a[007,9-11],other", "node-a007"),
        ("a,b[1-2]", "a"),
        ("r[2,4]n[1-2].c,d", "r2n1.c"),
    ],
)
def test_the_first_host_of_a_list(hosts, first):
    assert first_host(hosts) == first


def test_a_node_that_no_name_server_knows_is_where_slurm_says(tmp_path, monkeypatch):
    assert node_address("localhost") == "localhost"
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "NodeName=$3 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=$3"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = {"SLURM_STEP_NODELIST": "nowhere[3-4].invalid", "SLURM_JOB_ID": "2"}
    place = environment({**SLURM, **hosts})
    assert (place.address, place.port) == ("10.0.0.7", 10062)
    assert environment({**SLURM, **hosts, "SLURM_RESTART_COUNT": "1"}).port == 10063
    assert environment({**SLURM, **hosts, "MASTER_ADDR": "a"}).address == "a"


def fit_closure(strategy):
    module = TinyClassifier()
    module.configure_optimizers = lambda: torch.optim.LBFGS(module.parameters())
    Trainer(["-*"], strategy=strategy).fit(module, classification_batches(1))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_optimizers_that_go_forward_by_themselves_are_refused(strategy):
    for outcome in run_ranks(fit_closure, 2, strategy):
        assert outcome.error.startswith(
            f"ValueError: strategy={strategy!r} cannot be had with LBFGS, which decides by the loss"
        )
