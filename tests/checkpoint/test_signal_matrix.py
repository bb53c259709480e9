"""Which signal, to whom, with how many workers, at which moment: what could be saved is, and a resumed run has the same bits."""

import importlib
import itertools
import os
import random
import signal
import socket
import traceback
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe
from lightloop_plugins._handlers import Terminated
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.rig import bits

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
RECEIVERS = ("process", "group", "one rank", "all ranks")
MOMENTS = {
    "start": ("before_fit", 0),
    "in a batch": ("after_forward", 2),
    "in validation": ("before_evaluation_batch", 4),
    "in a save": ("before_save", 1),
    "in on_train_end": ("after_fit", 0),
    "teardown": ("teardown", 0),
}
"""A hook, and in which of its calls the signal comes."""
CASES = list(itertools.product(SIGNALS, RECEIVERS, (0, 2), MOMENTS))
SAMPLE = [("SIGTERM", "one rank", 0, "start"), *random.Random(4).sample(CASES, 4)]
PATIENCE = 120
"""Seconds after which a rank counts as hanging."""


class Noisy(Probe):
    """Draws random numbers, so that what is drawn twice or not at all is seen."""

    def training_step(self, batch):
        self.log("loss", loss := self.w * batch[0].mean() * torch.rand(()))
        return loss

    def validation_step(self, batch):
        self.log("val", batch[0].mean() + self.w)


class Sender(Plugin):
    """Sends the signal in call ``at`` of the hook ``moment``."""

    name = "sender_for_test"
    after = ("signals", "interrupt")
    before = ("checkpoint",)

    def __init__(self, number, receiver, moment):
        self.number, self.receiver, (self.moment, self.at) = number, receiver, moment
        super().__init__()

    def came(self, hook, loop):
        self.at -= hook == self.moment
        if hook != self.moment or self.at != -1:
            return
        if self.receiver == "group":
            os.killpg(0, self.number)
        elif self.receiver != "one rank" or loop.world.rank == 1:
            os.kill(os.getpid(), self.number)


def _sends(hook):
    return hookimpl(lambda self, loop: self.came(hook, loop), optionalhook=hook == "before_save")


for _hook, _ in MOMENTS.values():
    setattr(Sender, _hook, _sends(_hook))


def train(folder, workers, ranks, case, resume):
    """One life of the run; what it ends with."""
    ahead = 1 if workers else None
    data = TensorDataset(torch.arange(1.0, 17.0))
    loader = DataLoader(data, 2 // ranks, shuffle=True, num_workers=workers, prefetch_factor=ahead)
    options = {"checkpoint_dir": folder, "save_every": "3 batches", "val_check_interval": 3, "max_epochs": 2, "seed": 5}
    options |= {"strategy": "ddp", "accelerator": "cpu"} if ranks > 1 else {}
    plugins = ["-progress", "-model_summary", "-csv", *([Sender(*case)] if case else [])]
    warnings.simplefilter("ignore")
    return Trainer(plugins, **options).fit(Noisy(), loader, loader, resume=resume).status


def life(folder, workers, ranks, case=None, resume="auto"):
    """How each rank ended: its exit status, 128 + n for a signal, and 30 where it returned as interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pids = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                signal.alarm(PATIENCE)
                os.setsid()
                if ranks > 1:
                    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                code = {"finished": 0, "interrupted": 30}[train(folder, workers, ranks, case, resume)]
            except Terminated as ending:
                code = 128 + ending.number
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def left(folder):
    """What is in the newest checkpoint."""
    state = load_newest(LocalFolder(folder)).state
    for each in state["plugins"].values():
        each["state"].pop("path", None)
    state["plugins"].pop("sender_for_test", None)
    return bits(state)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    train(tmp_path_factory.mktemp("here"), 0, 1, None, None)  # so that children have imported all that they need
    importlib.import_module("torch._dynamo"), importlib.import_module("torch.distributed.fsdp")
    found = {}

    def run(workers, ranks):
        if (workers, ranks) not in found:
            folder = tmp_path_factory.mktemp("whole")
            assert life(folder, workers, ranks, resume=None) == [0] * ranks
            found[workers, ranks] = left(folder)
        return found[workers, ranks]

    return run


def hold(tmp_path, whole, name, receiver, workers, moment):
    ranks = 2 if "rank" in receiver else 1
    number = getattr(signal, name)
    expected = whole(workers, ranks)
    ended = life(tmp_path, workers, ranks, (number, receiver, MOMENTS[moment]))
    hit = {"one rank": [1], "all ranks": [0, 1]}.get(receiver, [0])
    late = moment in ("in on_train_end", "teardown")  # then all is done, and there is nothing to interrupt
    if name == "SIGINT":  # a result, by which the caller sees it; one that comes too late for that is raised
        assert all(code in ((30, 0, 1) if late else (30,)) for code in ended), ended
    else:
        assert [ended[rank] for rank in hit] == [128 + number] * len(hit)
        assert all(code in (0, 30, 128 + number) for code in ended), ended
    if moment != "start":
        assert load_newest(LocalFolder(tmp_path)) is not None
    assert life(tmp_path, workers, ranks) == [0] * ranks
    assert left(tmp_path) == expected


@pytest.mark.parametrize(("name", "receiver", "workers", "moment"), SAMPLE)
def test_a_signal_loses_nothing(tmp_path, whole, name, receiver, workers, moment):
    hold(tmp_path, whole, name, receiver, workers, moment)


@pytest.mark.torture
@pytest.mark.parametrize(("name", "receiver", "workers", "moment"), [case for case in CASES if case not in SAMPLE])
def test_a_signal_loses_nothing_whichever_whenever(tmp_path, whole, name, receiver, workers, moment):
    hold(tmp_path, whole, name, receiver, workers, moment)
