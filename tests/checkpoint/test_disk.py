"""Real limits of real file systems: full, small, read-only, gone."""

import errno
import os
import resource
import shutil
import subprocess
import warnings

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage.disk import Disk
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.folder import Content
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.faults import FaultyDisk, in_child
from tests.checkpoint.rig import LOADERS, outcome, train

QUIET = ["-progress", "-model_summary", "-csv", "-log_every"]


class Large(Probe):
    """Has more than a megabyte of weights, which are not the same in two steps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("much", torch.zeros(300_000))

    def training_step(self, batch):
        self.much += 1
        return super().training_step(batch)


def fit(folder, module=None, plugins=(), **options):
    trainer = Trainer([*QUIET, *plugins], checkpoint_dir=folder, save_every=1, **options)
    return trainer.fit(module or Large(), probe_batches(4))


def newest(folder):
    return load_newest(LocalFolder(folder)).manifest.step


def left(folder):
    return [name for name in os.listdir(folder) if name.startswith((".tmp-", ".dead-"))]


class Tells(Disk):
    """Says that so many bytes are free; an OSError is raised."""

    def __init__(self, free):
        self.room = free

    def free(self, at):
        if isinstance(self.room, OSError):
            raise self.room
        return self.room

    def mkdir(self, at, name):
        assert self.room != 100, "a save was begun for which there is no room"
        super().mkdir(at, name)


def test_a_save_for_which_there_is_no_room_is_not_begun(tmp_path):
    folder = LocalFolder(tmp_path, Tells(100))
    folder.open("r")
    content = Content.of({"weights": torch.zeros(1000)})
    with pytest.raises(
        CheckpointError, match=rf"step-000000001 is not saved: No space left .* at {tmp_path}; it needs 4,\d\d\d byt"
    ):
        folder.write("step-000000001", content, {"run": "r", "step": 1, "batch": 1})
    folder.close()
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.parametrize("room", [None, OSError(errno.ENOSYS, "not here")], ids=["unknown", "an error"])
def test_a_file_system_that_says_nothing_of_its_room_is_tried(tmp_path, room):
    folder = LocalFolder(tmp_path, Tells(room))
    folder.write("step-000000001", Content.of({}), {"run": "r", "step": 1, "batch": 1})
    assert newest(tmp_path) == 1


def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class Limits(Plugin):
    """From batch 2 on, no file may become larger; from batch 3 on it may."""

    name = "limits_for_test"

    def validate(self):
        self.again = True

    @hookimpl
    def before_batch(self, loop):
        if loop.total_batches == 2:
            limit_files(100_000)
        if loop.total_batches == 3 and self.again:
            limit_files(resource.RLIM_INFINITY)


def never_again():
    plugin = Limits()
    plugin.again = False
    return plugin


def test_a_limit_of_file_sizes_ends_the_run_with_what_was_saved_before(tmp_path):
    def work():
        with pytest.raises(
            CheckpointError, match=r"step-000000003-.*File too large at .*; it needs 1,2\d\d,\d\d\d bytes"
        ):
            fit(tmp_path, plugins=[never_again()])

    assert in_child(work) == 0
    assert (newest(tmp_path), left(tmp_path)) == (2, [])


def test_a_limit_of_file_sizes_may_be_a_warning_and_the_next_save_comes_off(tmp_path):
    def work():
        with pytest.warns(UserWarning, match=r"File too large.*Training goes on \(1 in a row failed\)"):
            assert fit(tmp_path, plugins=[Limits], on_save_error="warn").status == "finished"

    assert in_child(work) == 0
    assert (newest(tmp_path), left(tmp_path)) == (4, [])


def test_with_a_warning_only_the_run_does_not_end_well_if_the_last_save_failed(tmp_path):
    def work():
        with (
            pytest.warns(UserWarning, match="File too large"),
            pytest.raises(CheckpointError, match="last save failed"),
        ):
            fit(tmp_path, plugins=[never_again()], on_save_error="warn")

    assert in_child(work) == 0
    assert newest(tmp_path) == 2


@pytest.fixture
def small(tmp_path):
    """Makes a file system in memory of a given size, or gives it another."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = []

    def mount(size):
        options = f"remount,size={size}" if mounted else f"size={size}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.decode().strip()}")
        mounted.append(size)
        return path

    try:
        yield mount
    finally:
        if mounted:
            subprocess.run(["umount", path], check=True)


def test_a_full_file_system_that_is_made_larger(tmp_path, small):
    whole, trainer = train(tmp_path / "whole", LOADERS["plain"])
    expected = outcome(whole, trainer)
    place = small("200k")
    with pytest.raises(
        CheckpointError, match=r"is not saved: No space left on device at .*small; it needs [\d,]+ bytes"
    ):
        train(place, LOADERS["plain"], save_last=99)
    names = LocalFolder(place).names()
    assert names
    assert left(place) == []
    for _ in range(2):  # nor does a resumed run get further, or lose any
        with pytest.raises(CheckpointError, match="No space left on device"):
            train(place, LOADERS["plain"], resume="auto", save_last=99)
        assert LocalFolder(place).names() == names
    small("20m")
    assert outcome(*train(place, LOADERS["plain"], resume="auto", save_last=99)) == expected


def test_a_file_system_without_room_for_a_single_byte(small):
    place = small("8k")
    (place / "filler").write_bytes(b"x" * 4096)
    with pytest.raises(CheckpointError, match=r"cannot be written to|No space left on device"):
        fit(place)
    assert LocalFolder(place).names() == []


def test_a_file_system_that_is_read_only(tmp_path, small):
    place = small("1m")
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written to .*Read-only file system"):
        fit(place)


def test_a_directory_that_one_may_not_write_to_is_refused_before_the_first_batch(tmp_path):
    def work():
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        module = Probe()
        with pytest.raises(CheckpointError, match=r"checkpoints cannot be written to .*Permission denied"):
            fit(tmp_path / "closed", module, default_root_dir=tmp_path / "runs")
        assert module.seen == []

    (tmp_path / "closed").mkdir()
    (tmp_path / "runs").mkdir()
    os.chmod(tmp_path, 0o755)
    os.chmod(tmp_path / "runs", 0o777)
    os.chmod(tmp_path / "closed", 0o555)
    assert in_child(work) == 0


def test_a_directory_that_is_removed_while_it_is_used_ends_the_run(tmp_path):
    class Removes(Plugin):
        name = "removes"

        @hookimpl
        def before_batch(self, loop):
            if loop.total_batches == 2:
                shutil.rmtree(tmp_path / "here")

    with pytest.raises(CheckpointError, match="is not saved: No such file or directory"):
        fit(tmp_path / "here", plugins=[Removes])


def test_temporary_files_go_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert fit(tmp_path / "here").status == "finished"
    assert newest(tmp_path / "here") == 4


def test_what_cannot_be_read_is_passed_over(tmp_path):
    """A device error at each call of a search: the checkpoint that it hits is not taken, and none is lost."""
    fit(tmp_path / "run", Probe(), save_last=9)
    there = LocalFolder(tmp_path / "run").names()
    for at in range(100):
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "run", folder)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = load_newest(LocalFolder(folder, FaultyDisk(at, "once", errno.EIO))).name
            except OSError:  # it cannot be read which there are
                continue
        if not warned:
            break
        assert "Input/output error" in str(warned[0].message)
        assert "passed over, it is kept as .bad-" in str(warned[0].message)
        lost = set(there) - set(LocalFolder(folder).names())
        assert found == max(set(there) - lost)
        assert [f".bad-{name}" for name in lost] == [name for name in os.listdir(folder) if name.startswith(".bad-")]
    assert 5 < at < 100
