"""Signals and errors where they hurt most: in the midst of a batch, of a save, of a call to the file system.

A process that runs out of memory is killed by SIGKILL, as in test_kill.py, or meets a MemoryError, as here.
"""

import errno
import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop_plugins._handlers import Terminated
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage import local
from lightloop_plugins.checkpoint.storage.disk import Disk
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.folder import Content
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.faults import CALLS, FaultyDisk, in_child
from tests.checkpoint.rig import LOADERS, outcome, train

HOOKS = [
    "before_batch",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_step",
    "after_step",
    "after_batch",
    "between_batches",
]
BATCHES = 6  # a window of four, and a short one of two


@pytest.fixture(autouse=True)
def restored():
    """Signals are handled afterwards as they were before."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    now = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert now == before


def _sends(hook):
    def send(self, loop):
        if self.at is not None and hook == self.at[0] and loop.total_batches >= self.at[1]:
            self.at = None
            signal.raise_signal(signal.SIGTERM)

    return hookimpl(send)


class Sending(Plugin):
    """Sends SIGTERM from a hook, the first time that it is called in or after a batch."""

    name = "sending_for_test"
    before = ("checkpoint",)

    def validate(self):
        self.at = None


for _name in HOOKS:
    setattr(Sending, _name, _sends(_name))


def life(folder, at, resume="auto"):
    """One life of a run, which gets a signal; what came out, if it has come to its end."""
    plugin = Sending()
    plugin.at = at
    options = {"accumulate_grad_batches": 4, "save_every": None, "epochs": 1, "gradient_clip_val": 0.5}
    try:
        return outcome(*train(folder, LOADERS["plain"], [plugin], resume, **options))
    except Terminated:
        return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return life(tmp_path_factory.mktemp("whole"), None, None)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_signal_in_each_hook_of_each_batch_ends_at_a_safe_point(tmp_path, whole, hook):
    place, ended = 0, None
    while ended is None:
        ended = life(tmp_path, (hook, place), None if place == 0 else "auto")
        now = load_newest(LocalFolder(tmp_path)).manifest.batch
        assert place < now <= BATCHES or (now == BATCHES and ended)
        place = now
    assert ended == whole


class Interrupted(Disk):
    """At its call number ``at`` and the ``times`` - 1 ones after it, SIGINT comes."""

    def __init__(self, at, times):
        self.at, self.times, self.calls = at, times, 0


def _interrupted(name):
    def call(self, *arguments):
        here, self.calls = self.calls, self.calls + 1
        if here == self.at:
            signal.raise_signal(signal.SIGINT)
        result = getattr(Disk, name)(self, *arguments)
        if here == self.at + self.times - 1:
            signal.raise_signal(signal.SIGINT)
        return result

    return call


for _name in CALLS:
    setattr(Interrupted, _name, _interrupted(_name))


def fit(folder, batches=4, **options):
    trainer = Trainer(["-progress", "-model_summary", "-csv"], checkpoint_dir=folder, save_every=1, **options)
    return trainer.fit(Probe(), probe_batches(batches))


@pytest.mark.parametrize("apart", [1, 2])
def test_two_interrupts_at_every_call_of_a_save_end_it_at_once_and_what_was_saved_stays(tmp_path, monkeypatch, apart):
    calls = FaultyDisk()
    monkeypatch.setattr(local, "Disk", lambda: calls)
    fit(tmp_path / "whole", 1)
    first = calls.calls.index("mkdir")
    for at in range(first, first + 22):  # all of the first save, and some of the next
        folder = tmp_path / str(at)
        disk = Interrupted(at, apart)
        monkeypatch.setattr(local, "Disk", lambda disk=disk: disk)
        with pytest.raises(KeyboardInterrupt):
            fit(folder)
        monkeypatch.setattr(local, "Disk", Disk)
        assert not [name for name in os.listdir(folder) if name.startswith(".tmp-")]
        assert fit(folder, resume="auto").global_step == 4
        for name in (there := LocalFolder(folder)).names():
            there.verify(name)


def test_signals_that_are_handled_while_it_is_written_do_not_harm_a_checkpoint(tmp_path):
    came = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        folder, step = LocalFolder(tmp_path), 0
        while len(came) < 50:
            step += 1
            tree = {"weights": torch.full((200_000,), float(step))}
            folder.write(f"step-{step:09d}", Content.of(tree), {"run": "r", "step": step, "batch": step})
            assert torch.equal(load_newest(folder).state["weights"], tree["weights"])
            folder.remove(f"step-{step:09d}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Failing(FaultyDisk):
    """Raises the given error in place of one of the operating system's."""

    def __init__(self, at, error):
        super().__init__(at)
        self.error = error

    def meets(self, name):
        if super().meets(name):
            raise self.error
        return False


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EINTR, os.strerror(errno.EINTR)),
        pytest.param(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), marks=pytest.mark.torture),
        MemoryError(),
    ],
    ids=repr,
)
def test_an_error_at_every_call_of_the_writing_thread_ends_the_run_and_what_was_saved_stays(
    tmp_path, monkeypatch, error
):
    saved, steps = FaultyDisk(), set()
    monkeypatch.setattr(local, "Disk", lambda: saved)
    fit(tmp_path / "whole", 2, async_save=True)
    first, last = saved.calls.index("mkdir"), len(saved.calls) - 1 - saved.calls[::-1].index("fsync_directory")
    for at in range(first, last + 1):
        folder = tmp_path / str(at)
        monkeypatch.setattr(local, "Disk", lambda at=at: Failing(at, error))
        with pytest.raises(CheckpointError if isinstance(error, OSError) else type(error)):
            fit(folder, 2, async_save=True)
        monkeypatch.setattr(local, "Disk", Disk)
        found = load_newest(LocalFolder(folder))
        steps.add(found.manifest.step if found else 0)
        assert not [name for name in os.listdir(folder) if name.startswith(".tmp-")]
        assert fit(folder, 2, resume="auto").global_step == 2
    assert steps == {0, 1}, "2 is renamed, and taken away again where its name is not durable"


def test_where_memory_runs_out_in_a_save_what_was_saved_stays(tmp_path):
    class Growing(Probe):
        def __init__(self):
            super().__init__()
            self.register_buffer("much", torch.zeros(1))

        def training_step(self, batch):
            if batch == 2:
                self.much = torch.zeros(20_000_000)  # no save that is under way holds as much, and could free it
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                limit = pages * resource.getpagesize() + 20_000_000
                resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
            return super().training_step(batch)

    def work():
        trainer = Trainer(
            ["-progress", "-model_summary", "-csv"], checkpoint_dir=tmp_path, save_every=1, async_save=True
        )
        with pytest.raises(RuntimeError, match="allocate memory"):
            trainer.fit(Growing(), probe_batches(4))

    assert in_child(work) == 0
    assert 1 <= load_newest(LocalFolder(tmp_path)).manifest.step < 4
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")]
