"""A rank is killed at a random moment: all of them end, and the run that is gone on with ends as if nothing had been."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightloop.testing.ranks import run_ranks, values_of
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.sharded_rig import DDP, FSDP, counted, doomed, plain
from tests.checkpoint.test_sharded import same

pytestmark = pytest.mark.processes


def killed(tmp_path, strategy, options, lives, seed):
    """Kill one rank in life after life, and let the last come to its end."""
    whole = values_of(run_ranks(counted, 2, tmp_path / "whole", strategy, options))
    wanted, places = [outcome for outcome, _ in whole], whole[0][1]
    folder, chance = tmp_path / "killed", random.Random(seed)
    for number in range(lives):
        rank = chance.randrange(2)
        at = chance.randrange(1, places // lives)  # so much is left to do that no life can be the last
        outcomes = run_ranks(doomed, 2, folder, strategy, options, rank, at, chance.uniform(0.0, 0.003))
        assert outcomes[rank].status == -signal.SIGKILL, (number, outcomes)
        other = outcomes[1 - rank]
        assert other.status == 1, (number, outcomes)
        assert other.error is not None
        assert other.seconds < 60, "it did not wait for the time-out"
    found = values_of(run_ranks(doomed, 2, folder, strategy, options, None, None, 0.0))
    for each, other in zip(found, wanted, strict=True):
        same(each, other)
    assert LocalFolder(folder).verify(max(LocalFolder(folder).names())).batch == 20
    assert not [name for name in os.listdir(folder) if name.startswith((".tmp-", ".bad-"))]


KINDS = [(DDP, {}), (FSDP, {}), (FSDP, {"async_save": True})]


@pytest.mark.parametrize(("strategy", "options"), [KINDS[0], KINDS[2]])
def test_a_rank_is_killed_and_the_run_goes_on_to_the_bit(tmp_path, strategy, options):
    killed(tmp_path, strategy, options, 2, os.urandom(8))


@pytest.mark.torture
@pytest.mark.parametrize("life", range(10))
@pytest.mark.parametrize(("strategy", "options"), KINDS)
def test_ranks_are_killed_again_and_again(tmp_path, strategy, options, life):
    killed(tmp_path, strategy, options, 8, os.urandom(8))


def test_torchrun_starts_a_killed_worker_again_and_all_go_on_to_the_bit(tmp_path):
    restarted(tmp_path, 1)


@pytest.mark.torture
@pytest.mark.parametrize("life", range(5))
def test_torchrun_starts_killed_workers_again_and_again(tmp_path, life):
    restarted(tmp_path, 3)


def restarted(tmp_path, lives):
    whole = values_of(run_ranks(counted, 2, tmp_path / "whole", DDP, {}))
    folder, chance = tmp_path / "elastic", random.Random(os.urandom(8))
    folder.mkdir()
    deaths = [
        (chance.randrange(2), chance.randrange(1, whole[0][1] // (lives + 1)), chance.uniform(0.0, 0.003))
        for _ in range(lives)
    ]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(lives), "--monitor-interval", "0.1", "-m", "tests.checkpoint.sharded_rig"]
    done = subprocess.run(
        [*command, str(folder), json.dumps(deaths)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    for rank, (wanted, _) in enumerate(whole):
        assert json.loads((folder / f"outcome.{rank}").read_text()) == plain(wanted)
