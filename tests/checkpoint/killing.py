"""Kill a run again and again, wherever it is, and as often as asked for however fast the machine is.

The victim is a process of its own, forked from a server that has torch and lightloop imported. It tells of every hook and
of every call to the file system by one byte in a pipe. For each life a place is drawn; when so many bytes have come, a
SIGKILL is sent, while the victim goes on. It does not go far: some places later, or where it has done as many batches as
one life may, it stands and waits for its end. So no life can be the last one before every kill has been made.
"""

import contextlib
import json
import multiprocessing
import os
import random
import select
import signal
import threading
import time

from lightloop import Plugin, hookimpl
from lightloop.host.discovery import discover
from lightloop_plugins.checkpoint.storage import local
from lightloop_plugins.checkpoint.storage.disk import Disk
from lightloop_plugins.checkpoint.storage.find import load_one
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.run_dir import RUN_DIR
from tests.checkpoint.faults import CALLS
from tests.checkpoint.rig import bits, outcome, train
from tests.checkpoint.victims import BATCHES, VICTIMS
from tests.plugins.test_tensorboard import shown

PATIENCE = 600.0
"""Seconds after which a process of which nothing is heard has failed the test."""
HOOKS = [
    "setup",
    "before_fit",
    "before_epoch",
    "before_batch",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_step",
    "after_step",
    "on_step_skipped",
    "after_batch",
    "between_batches",
    "after_epoch",
    "before_evaluation",
    "before_evaluation_batch",
    "after_evaluation_batch",
    "after_evaluation",
    "after_fit",
    "teardown",
]


class Way:
    """The places that a victim passes; it tells of each, and waits at the end."""

    def __init__(self, pipe=None, places=None, batches=None):
        self.pipe, self.places, self.batches = pipe, places, batches
        self.passed = self.begun = 0
        self.lock = threading.Lock()

    def step(self, name):
        with self.lock:  # held for good by whoever waits here: another thread gets no further either
            self.passed += 1
            self.begun += name == "before_batch"
            if self.pipe is None:
                return
            os.write(self.pipe.fileno(), b".")
            if self.passed == self.places or self.begun > self.batches:
                os.write(self.pipe.fileno(), b"!")
                time.sleep(PATIENCE)
                os._exit(9)  # nobody came


WAY = Way()


def _hook(name):
    return hookimpl(lambda self, loop: WAY.step(name))


def _call(name):
    def call(self, *arguments):
        WAY.step(name)
        return getattr(Disk, name)(self, *arguments)

    return call


Telling = type("Telling", (Plugin,), {"name": "telling_for_test", **{name: _hook(name) for name in HOOKS}})
TellingDisk = type("TellingDisk", (Disk,), {name: _call(name) for name in CALLS})


def live(victim, folder, *way):
    """One life of a run, which ends by writing down what came out."""
    global WAY
    WAY = Way(*way)
    local.Disk = TellingDisk
    multiprocessing.set_start_method("fork", force=True)  # for the workers of loaders: it costs the least
    make_module, make_loader, options = VICTIMS[victim]

    def module():
        net = make_module()
        net.file = folder / "trace"
        return net

    options = {"default_root_dir": folder / "runs", "run_name": "x", **options}
    module, trainer = train(None, make_loader, [Telling], resume="auto", module=module, **options)
    run = trainer.loop.stash[RUN_DIR]
    result = {"outcome": outcome(module, trainer), "files": files(run)}
    (folder / "result.new").write_text(json.dumps([WAY.passed, result], default=str))
    os.rename(folder / "result.new", folder / "result")
    os._exit(0)  # workers of loaders are not waited for


def files(run):
    """What is in each file of a run: the bits of a checkpoint, the rows of event files, and of any other its text."""
    found = {"events": shown(run)}
    folder = LocalFolder(run / "checkpoints")
    for name in folder.names():
        state = load_one(folder, name).state
        state["plugins"].pop("run_dir")  # it says where it is
        found[name] = bits(state)
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        if path.is_dir() or name.name.startswith("events.") or (len(name.parts) == 3 and name.parts[1] in found):
            continue
        found[str(name)] = "" if name.name == ".lock" else path.read_text()  # that says which process writes
    return found


def result(folder):
    """What came out, and what was trained on, by its place in the run; what came twice was the same twice."""
    order = {}
    for line in (folder / "trace").read_text().splitlines():
        where, what = json.loads(line)
        assert order.setdefault(str(where), what) == what
    return json.loads((folder / "result").read_text())[1], order


def differences(found, wanted, path=""):
    """Where two results differ, and how."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(found.keys() | wanted.keys())
        parts = ((f"{path}/{key}", found.get(key, "nothing"), wanted.get(key, "nothing")) for key in keys)
    elif isinstance(found, (list, tuple)) and isinstance(wanted, (list, tuple)) and len(found) == len(wanted):
        parts = ((f"{path}[{index}]", *pair) for index, pair in enumerate(zip(found, wanted, strict=True)))
    else:
        return [] if found == wanted else [f"{path}: {str(found)[:200]!r}, not {str(wanted)[:200]!r}"]
    return [each for name, one, other in parts for each in differences(one, other, name)]


@contextlib.contextmanager
def started(*arguments):
    """A process that lives, until the end of the block at most."""
    context = multiprocessing.get_context("forkserver")
    plugins = [found.value.partition(":")[0] for found in discover().values() if found.plugin]
    context.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.fsdp", "tensorboardX", *plugins])
    process = context.Process(target=live, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def hear(pipe, process, places):
    """Wait until the process has passed so many more places, or waits for its end."""
    said = b""
    while len(said) < places and b"!" not in said:
        ready, _, _ = select.select([pipe, process.sentinel], [], [], PATIENCE)
        assert pipe in ready, f"the victim is silent, or has ended by itself: exit status {process.exitcode}"
        said += os.read(pipe.fileno(), places - len(said))


def undisturbed(victim, folder):
    """Let a life come to its end; how many places there were in it."""
    folder.mkdir(exist_ok=True)
    with started(victim, folder) as process:
        process.join(PATIENCE)
        assert process.exitcode == 0
    return json.loads((folder / "result").read_text())[0]


def kill_once(victim, folder, at, places, batches, pause=0.0):
    """Begin a life that is over after ``places`` places or ``batches`` batches, and kill it after ``at`` places."""
    here, there = multiprocessing.Pipe(duplex=False)
    with here, there, started(victim, folder, there, places, batches) as process:
        hear(here, process, at)
        time.sleep(pause)
        process.kill()
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL


def kill(victim, folder, lives, seed, places):
    """Kill so many lives, and let the next come to its end.

    Args:
        victim: a name in VICTIMS.
        folder: where it leaves what it leaves.
        lives: how many are killed.
        seed: decides where.
        places: how many there are in a whole run.
    """
    folder.mkdir()
    chance = random.Random(seed)
    share = BATCHES // (lives + 1)  # so something is left to do for the last life
    for _ in range(lives):
        at = chance.randrange(1, 30 + places * share // BATCHES)  # those of getting ready included
        kill_once(victim, folder, at, at + chance.randrange(1, 10), share, chance.uniform(0.0, 0.002))
        assert not (folder / "result").exists()
    undisturbed(victim, folder)
