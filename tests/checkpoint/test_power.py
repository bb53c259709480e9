"""Power is cut at any moment: what was not yet on the device is gone, or partly there, and what was committed is whole."""

import os
import random
import warnings
from pathlib import Path

import pytest
import torch

from lightloop import Module, Trainer
from lightloop.cli.run import KeepConfig
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage import local
from lightloop_plugins.checkpoint.storage.disk import Disk
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.folder import Content
from lightloop_plugins.checkpoint.storage.local import LocalFolder

SAVES = 4


class File:
    """What was written to a file, and how much of it is surely on the device."""

    def __init__(self):
        self.data, self.synced = b"", 0


class Directory:
    """Names that are surely on the device, and changes since: (what, name, file or directory)."""

    def __init__(self):
        self.names, self.changes = {}, []

    def now(self):
        return after(self.names, self.changes)


def after(names, changes):
    names = dict(names)
    for what, name, entry in changes:
        if what == "add":
            names[name] = entry
        elif what == "delete":
            names.pop(name, None)
        else:  # a rename is one change; its source may never have got there
            names.pop(name[0], None)
            names[name[1]] = entry
    return names


class Device(Disk):
    """Does what it is asked to, and models what would be left of it if the power failed now."""

    def __init__(self, root, cut):
        self.root, self.cut = root, cut
        self.top = Directory()
        self.open = {}

    def of(self, at):
        path = Path(os.readlink(f"/proc/self/fd/{at}"))
        return self.top if path == self.root else self.top.now()[path.name]

    def mkdir(self, at, name):
        super().mkdir(at, name)
        self.of(at).changes.append(("add", name, Directory()))
        self.cut()

    def create(self, at, name):
        handle = super().create(at, name)
        self.open[handle] = File()
        self.of(at).changes.append(("add", name, self.open[handle]))
        self.cut()
        return handle

    def write(self, handle, data):
        count = super().write(handle, data)
        self.open[handle].data += bytes(data[:count])
        self.cut()
        return count

    def fsync(self, handle):
        super().fsync(handle)
        self.open[handle].synced = len(self.open[handle].data)
        self.cut()

    def fsync_directory(self, at):
        super().fsync_directory(at)
        directory = self.of(at)
        directory.names, directory.changes = directory.now(), []
        self.cut()

    def rename(self, at, source, target):
        super().rename(at, source, target)
        self.top.changes.append(("rename", (source, target), self.top.now()[source]))
        self.cut()

    def remove(self, at, name):
        super().remove(at, name)
        directory = self.top.now()[name]
        directory.changes += [("delete", each, None) for each in directory.now()]
        self.top.changes.append(("delete", name, None))
        self.cut()


def lay_out(directory, path, choose):
    """Make at ``path`` what the device may hold: ``choose`` picks among changes, and how much of a file is there."""
    path.mkdir()
    for name, entry in after(directory.names, choose(directory.changes)).items():
        if isinstance(entry, Directory):
            lay_out(entry, path / name, choose)
        else:
            kept = entry.data[: entry.synced] + choose(entry.data[entry.synced :])
            (path / name).write_bytes(kept + bytes(len(entry.data) - len(kept) if choose.holes else 0))


class Choice:
    """Of what is not surely on the device: nothing, all, or some, in whatever order it got there."""

    def __init__(self, kind, seed):
        self.kind, self.chance = kind, random.Random(seed)
        self.holes = kind == "some" and self.chance.random() < 0.5  # the length was there before the bytes were

    def __call__(self, unsure):
        if self.kind != "some":
            return unsure if self.kind == "all" else unsure[:0]
        if isinstance(unsure, bytes):
            return unsure[: self.chance.randrange(len(unsure) + 1)]
        return [change for change in unsure if self.chance.random() < 0.5]


def tree(step):
    return {"step": step, "weights": torch.full((5, 3), float(step)), "more": [torch.arange(step)]}


def check(path, committed):
    """What is found there: a checkpoint that is no older than the last one that was committed, and to the bit as it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older ones may be damaged, and are passed over
        found = load_newest(LocalFolder(path))
    if not committed and found is None:
        return
    step = found.manifest.step
    assert step >= committed
    assert torch.equal(found.state["weights"], tree(step)["weights"])
    again = LocalFolder(path)
    again.open("r")
    assert not [name for name in os.listdir(path) if name.startswith((".tmp-", ".dead-"))]
    again.write(f"step-{step + 1:09d}", Content.of(tree(step + 1)), {"run": "r", "step": step + 1, "batch": step + 1})
    again.close()
    assert load_newest(again).manifest.step == step + 1


def cut_everywhere(tmp_path, some):
    """Save, and delete what is old; at every call, cut the power in ``some`` ways; how often it was cut."""
    committed, cuts = 0, 0

    def cut():
        nonlocal cuts
        for kind, seed in [("none", 0), ("all", 0), *(("some", cuts + number) for number in range(some))]:
            cuts += 1
            place = tmp_path / f"left-{cuts}"
            lay_out(device.top, place, Choice(kind, seed))
            check(place, committed)

    (tmp_path / "device").mkdir()
    device = Device(tmp_path / "device", cut)
    folder = LocalFolder(device.root, device)
    for step in range(1, SAVES + 1):
        folder.write(f"step-{step:09d}", Content.of(tree(step)), {"run": "r", "step": step, "batch": step})
        committed = step
        if step > 2:
            folder.remove(f"step-{step - 2:09d}")
    return cuts


def test_power_is_cut_at_every_call_of_saves_and_removals(tmp_path):
    assert cut_everywhere(tmp_path, 2) > 200


@pytest.mark.torture
def test_power_is_cut_at_every_call_and_leaves_something_else_each_time(tmp_path):
    assert cut_everywhere(tmp_path, 40) > 2000


@pytest.mark.parametrize("call", ["fsync", "fsync_directory"])
def test_without_waiting_for_the_device_a_checkpoint_is_lost(tmp_path, monkeypatch, call):
    def forgets(self, what):
        self.cut()

    monkeypatch.setattr(Device, call, forgets)
    with pytest.raises(CheckpointError, match="none of the"):
        cut_everywhere(tmp_path, 2)


class Logging(Module):
    """Logs more metrics as it goes on, so that files are written anew."""

    def __init__(self, rate=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        for number in range(batch_idx + 1):
            self.log(f"metric {number}", batch)
        return self.weight * batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("loggers", [["csv", "tensorboard"], False], ids=["loggers", "none"])
def test_when_a_checkpoint_appears_all_other_files_of_the_run_are_on_the_device(tmp_path, monkeypatch, loggers):
    """Of each file, its size when it was last waited for, and of its directory, the names that it had then.

    The directories above it too: where the name of one is lost, all that is in it is.
    """
    sizes, names, seen = {}, {}, []
    real = os.fsync

    def fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            names[path] = set(os.listdir(path))
        else:
            sizes[os.fstat(handle).st_ino] = os.fstat(handle).st_size
        real(handle)

    class Committing(Disk):
        def rename(self, at, source, target):
            folder = Path(os.readlink(f"/proc/self/fd/{at}"))
            run = folder.parent
            for path in (folder, *folder.parents):
                if path == tmp_path:
                    break
                assert path.name in names.get(path.parent, ()), f"the name of {path} is not on the device"
            seen.append("folder")
            for path in run.iterdir():
                if path.is_file() and not path.name.startswith("."):
                    seen.append(path.name)
                    assert sizes.get(path.stat().st_ino) == path.stat().st_size, f"{path.name} is not on the device"
                    assert path.name in names[run], f"the name {path.name} is not on the device"
            super().rename(at, source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(local, "Disk", Committing)
    options = {
        "logger": loggers,
        "log_every_n_steps": 1,
        "flush_logs_every_n_steps": 100,
        "save_every": 1,
    }
    options |= {"enable_progress_bar": False, "weights_summary": None, "default_root_dir": tmp_path / "my" / "runs"}
    Trainer([KeepConfig("seed: 1\n")], **options).fit(Logging(), [torch.tensor(float(number)) for number in range(4)])
    written = {"metrics", "events", "hparams"} if loggers else set()
    assert {name.split(".")[0] for name in seen} == {"folder", "config"} | written
