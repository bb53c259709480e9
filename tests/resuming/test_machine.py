"""The machine itself: it sees what is forgotten, by name, and agrees with runs in processes of their own."""

import os

import pytest
import torch

from lightloop import Loop, Plugin, hookimpl
from lightloop.testing.ranks import run_ranks, values_of
from lightloop.testing.resuming import END, Report
from lightloop.testing.snapshots import differing
from tests.resuming.rig import resuming

SHORT = {"max_epochs": 2}


class Forgets(Plugin):
    """Scales every third gradient, and does not keep which is the next."""

    name = "forgets"

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self.count = 0

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        self.count += 1
        if self.count % 3 == 0:
            for gradient in loop.gradients:
                gradient.mul_(0.5)


class Lies(Forgets):
    """Says that each run sets it anew, though it decides what comes next."""

    name = "lies"
    transient = ("count",)


class Keeps(Forgets):
    name = "keeps"
    state = ("count",)


def test_what_is_forgotten_is_named(tmp_path):
    report = resuming(tmp_path, SHORT, plugins=[Forgets]).prove()
    assert any(parting.path == "plugins.forgets.count" for parting in report.first), str(report)
    assert "plugins.forgets.count after batch 2 (epoch 0) is 1; 2 in the run that was not stopped" in str(report)


def test_a_declaration_that_is_wrong_shows_in_what_follows(tmp_path):
    report = resuming(tmp_path, SHORT, plugins=[Lies]).prove(4)
    assert report.partings, "nothing was seen"
    assert any(parting.path.startswith("module.net") for parting in report.first)


def test_what_is_kept_is_found_the_same(tmp_path):
    report = resuming(tmp_path, SHORT, plugins=[Keeps]).prove(4)
    assert report.partings == [], str(report)
    assert report.boundaries == 4
    assert report.values > 4_000


def lives(folder, options, here, **how):
    """What a run that was killed at the boundary ``here`` is like when it is resumed in this process."""
    machine = resuming(folder, options, **how)
    return machine.live(f"at/{here[0]}-{here[1]}", Report(), resume=True)


@pytest.mark.processes
def test_a_process_of_its_own_finds_what_the_machine_finds(tmp_path):
    options = {"nonfinite": "skip_step", "accumulate_grad_batches": 2}
    machine = resuming(tmp_path, options, module="Infinite", loader="shuffled")
    whole = machine.live("whole", Report(), copies=True)
    for here in ((3, 0), (6, 1)):
        (there,) = values_of(run_ranks(lives_alone, 1, tmp_path, options, here))
        assert there.keys() == {number for number in whole if number == END or number > here}
        for number, state in there.items():
            assert differing(whole[number], state, machine.unsteady) == []


def lives_alone(folder, options, here):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(name, None)
    torch.set_num_threads(1)
    return lives(folder, options, here, module="Infinite", loader="shuffled")
