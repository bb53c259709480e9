"""What the ranks of the tests of sharded checkpoints do; it is imported by name in their processes."""

import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing.accelerator_runs import samples
from lightloop_plugins.checkpoint import plugin
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.state import run as run_state
from lightloop_plugins.checkpoint.storage import local
from lightloop_plugins.checkpoint.storage.disk import Disk
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.faults import FaultyDisk

FSDP = {"strategy": "fsdp", "fsdp_min_size": 50, "fsdp_timeout": 60.0}
DDP = {"strategy": "ddp", "ddp_timeout": 60.0}
RANKED = ["-*", "lockstep", "shard_data", "set_epoch", "validation", "duration", "checkpoint", "run_dir", "log_every"]


class Net(Module):
    """Everything that a rank has for itself: dropout, statistics, a generator, an extra state."""

    def __init__(self, norm=True):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Linear(6, 12),
            nn.BatchNorm1d(12) if norm else nn.Identity(),
            nn.Dropout(0.3),
            nn.Tanh(),
            nn.Linear(12, 5),
        )
        self.head = nn.Linear(5, 2)
        self.generator = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
        self.calls = int(os.environ.get("RANK", "0"))
        self.losses = []

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]

    def loss(self, batch):
        return (self.head(self.body(batch[0])) - batch[1]).pow(2).mean()

    def training_step(self, batch):
        self.calls += 1
        noise = torch.randn((), generator=self.generator)
        loss = self.loss(batch) * (1 + 0.01 * noise + 0.01 * random.random() + 0.001 * self.calls)
        self.losses.append(loss.item())
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch):
        self.log("val", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02, weight_decay=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


class Stop(Plugin):
    """Stops the run when so many batches are done, and looks at its tensors at the end."""

    name = "stop_for_test"
    before = ("checkpoint", "strategy")

    def __init__(self, at):
        self.at, self.optimizers, self.average = at, None, {}

    @hookimpl
    def after_batch(self, loop):
        if loop.total_batches + 1 == self.at:
            loop.stop("the test says so")

    @hookimpl
    def after_fit(self, loop):
        if loop.status == "failed":
            return
        self.optimizers = [
            {
                f"{index} {name}": value.full_tensor() if isinstance(value, DTensor) else value.clone()
                for index, its in optimizer.state_dict()["state"].items()
                for name, value in its.items()
            }
            for optimizer in loop.optimizers
        ]
        for ema in (each for each in loop.plugins if each.name == "ema"):
            self.average = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in ema.average.items()}


def life(folder, strategy, *plugins, at=None, resume=None, epochs=2, accumulate=3, norm=True, **options):
    """One life of a run: what came out of it, on this rank."""
    begins = resume is None or (resume == "auto" and not LocalFolder(folder).names())
    for seed in (torch.manual_seed, random.seed):
        seed(int(os.environ.get("RANK", "0")) + (0 if begins else 100))
    module, stop = Net(norm), Stop(at)
    options = {"max_epochs": epochs, "accumulate_grad_batches": accumulate, **strategy, **options}
    options = {"val_check_interval": 4, "save_every": None, "checkpoint_dir": str(folder), "resume": resume, **options}
    trainer = Trainer([*RANKED, stop, *plugins], **options)
    size = 4 if "RANK" in os.environ else 8
    result = trainer.fit(module, DataLoader(samples(80), size, shuffle=True), DataLoader(samples(12), 4))
    return {
        "weights": {n: t for n, t in module.state_dict().items() if isinstance(t, torch.Tensor)},
        "optimizers": stop.optimizers,
        "average": stop.average,
        "losses": module.losses,
        "own": [
            module.calls,
            torch.rand(()).item(),
            random.random(),
            torch.rand((), generator=module.generator).item(),
        ],
        "rates": [group["lr"] for group in trainer.loop.optimizers[0].param_groups],
        "steps": result.global_step,
        "metrics": result.metrics,
    }


def again(folder, strategy, source, epochs):
    """Go on from ``source`` with nothing left to train; save what that gives in ``folder``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is of another run than this", UserWarning)
        outcome = life(folder, strategy, resume=str(source), epochs=epochs, accumulate=1, ema_decay=0.9)
        more = life(folder, strategy, resume=str(source), epochs=epochs + 1, accumulate=1, ema_decay=0.9)
    return outcome, more


def forgetful(folder, part):
    """A life that saves, of one part, what rank 0 has for every rank."""
    whole = run_state.gather

    def gather(loop, own):
        mine = loop.world.broadcast(own[part]) if part != "waiting" else {}
        return whole(loop, {**own, part: mine})

    run_state.gather = gather
    life(folder, FSDP, at=8, epochs=1)


class FailsToWrite(FaultyDisk):
    """Counts what is done to write, alone."""

    def meets(self, name):
        return name not in ("read", "names") and super().meets(name)


def faulty(folder, rank, number):
    """Runs whose file system fails at call after call on one rank, until it does not come to that; what was said."""
    own, said = int(os.environ["RANK"]), []
    life(folder, FSDP, epochs=1)
    for at in range(200):
        disk = FailsToWrite(at, "once", number)
        local.Disk = (lambda disk=disk: disk) if own == rank else Disk
        try:
            life(folder, FSDP, resume=str(folder), epochs=2, at=12, save_last=1)
        except CheckpointError as error:
            said.append(str(error))
        else:
            return said
        finally:
            local.Disk = Disk
        newest = load_newest(LocalFolder(folder), aside=False)
        assert newest.manifest.batch == 10
        assert not [name for name in os.listdir(folder) if name.startswith(".tmp-")]
    raise AssertionError("it never came to an end")


class Waits(Disk):
    """Each write waits until training has gone on by a batch since it began."""

    trained = threading.Event()
    waited = 0

    def fsync(self, handle):
        if threading.current_thread() is not threading.main_thread():
            assert self.trained.wait(60)
            Waits.waited += 1
        super().fsync(handle)


class Beat(Plugin):
    name = "beat"
    before = ("checkpoint",)

    @hookimpl
    def between_batches(self, loop):
        if loop.total_batches % 3 == 0:  # a write is about to begin; one that still waited would wait for ever
            loop.trainer.plugin("checkpoint")._saver.wait()
            Waits.trained.clear()

    @hookimpl
    def after_batch(self, loop):
        Waits.trained.set()


def beside(folder):
    local.Disk = Waits
    outcome = life(folder, FSDP, Beat(), async_save=True, save_every="3 batches", save_last=9)
    return outcome, Waits.waited


def unwilling(folder):
    """A write fails on rank 1 while training goes on."""
    if os.environ["RANK"] == "1":
        local.Disk = lambda: FailsToWrite(1)
    life(folder, FSDP, async_save=True, save_every="4 batches")


class Guarded(Plugin):
    name = "guarded"
    before = ("checkpoint",)

    @hookimpl
    def between_batches(self, loop):
        if loop.world.rank == 0 and loop.batch_idx == 4:
            loop.trainer.plugin("checkpoint").save_next()


def guarded(folder, strategy):
    plugin.PATIENCE = 3.0
    life(folder, strategy, Guarded())


class Odd(Plugin):
    """Has what cannot be stored, on one rank."""

    name = "odd"

    def state_dict(self):
        return {"file": open} if os.environ["RANK"] == "1" else {}


def odd(folder):
    life(folder, FSDP, Odd())


PLACES = ["before_epoch", "before_batch", "before_backward", "after_backward", "before_step", "after_batch"]
PLACES += ["between_batches", "before_evaluation", "after_evaluation_batch", "after_epoch"]


class Dies(Plugin):
    """Counts the places that its rank passes; at number ``at``, and after a pause that it is not stopped in, it is killed."""

    name = "dies"
    before = ("checkpoint",)

    def __init__(self, at=None, pause=0.0):
        self.at, self.pause, self.passed = at, pause, 0

    def step(self):
        self.passed += 1
        if self.passed == self.at:
            threading.Thread(target=self.die, daemon=True).start()

    def die(self):
        time.sleep(self.pause)
        os.kill(os.getpid(), signal.SIGKILL)


for _name in PLACES:
    setattr(Dies, _name, hookimpl(lambda self, loop: self.step()))

SAVING = {"save_every": "2 batches", "val_check_interval": 4}


def doomed(folder, strategy, options, rank, at, pause):
    """A life that ends by the death of ``rank``."""
    here = Dies(at, pause) if int(os.environ["RANK"]) == rank else Dies()
    return life(folder, strategy, here, resume="auto", **{**SAVING, **options})


def counted(folder, strategy, options):
    """An undisturbed life, and how many places there are in it."""
    counter = Dies()
    return life(folder, strategy, counter, **{**SAVING, **options}), counter.passed


def elastic(folder, deaths):
    """A worker of torchrun: in each of its first lives one rank is killed, as ``deaths`` says; the last writes what came out."""
    life_number, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    (victim, *how) = deaths[life_number] if life_number < len(deaths) else (None,)
    outcome = life(
        folder, DDP, Dies(*how) if rank == victim else Dies(), "signals", "interrupt", resume="auto", **SAVING
    )
    Path(folder, f"outcome.{rank}").write_text(json.dumps(plain(outcome)))


def plain(outcome):
    """An outcome as JSON has it, to the bit: losses apart, of which there are but the last."""
    weights = {name: value.tolist() for name, value in outcome["weights"].items()}
    optimizers = [{name: value.tolist() for name, value in each.items()} for each in outcome["optimizers"]]
    return json.loads(
        json.dumps(
            {**outcome, "average": {}, "weights": weights, "optimizers": optimizers, "losses": outcome["losses"][-1]}
        )
    )


if __name__ == "__main__":
    elastic(Path(sys.argv[1]), json.loads(sys.argv[2]))


class HeadOnly(Plugin):
    """Freezes the body, and leaves it out of checkpoints."""

    name = "head_only"
    before = ("accelerator", "strategy")

    @hookimpl
    def setup(self, loop):
        loop.module.body.requires_grad_(False)

    @hookimpl(optionalhook=True)
    def saved_tensors(self, names):
        return [name for name in names if name.startswith("head.")]


def life_of_a_head(folder, strategy, **options):
    return life(folder, strategy, HeadOnly(), epochs=1, norm=False, **options)
