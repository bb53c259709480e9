"""Writing durably and reading only what verifies, whatever call to the file system goes wrong."""

import errno
import itertools
import os
import sys
import time

import pytest
import torch

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import MANIFEST, STATE, TENSORS
from lightloop_plugins.checkpoint.storage.find import load_newest, load_one
from lightloop_plugins.checkpoint.storage.folder import Content
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.checkpoint.storage.remote import folder_of
from tests.checkpoint.faults import FaultyDisk, in_child


def name(step):
    return f"step-{step:09d}"


def tree(step):
    return {"step": step, "weights": torch.full((5, 3), float(step)), "more": [torch.arange(step)]}


def save(folder, step, run="r1"):
    folder.write(name(step), Content.of(tree(step)), {"run": run, "step": step, "batch": step * 2})


def raised_by(work):
    try:
        work()
    except CheckpointError as error:
        return error
    return None


@pytest.fixture
def folder(tmp_path):
    folder = LocalFolder(tmp_path / "checkpoints")
    folder.open("r1")
    for step in (1, 2):
        save(folder, step)
    yield folder
    folder.close()


def newest_step(folder):
    found = load_newest(folder)
    assert torch.equal(found.state["weights"], tree(found.manifest.step)["weights"])
    return found.manifest.step


def test_what_was_written_comes_back(folder):
    save(folder, 3)
    assert newest_step(folder) == 3
    assert sorted(os.listdir(folder.path / name(3))) == [MANIFEST, STATE, TENSORS]
    assert folder.names() == [name(1), name(2), name(3)]
    assert load_one(folder, name(1)).state["step"] == 1


def test_the_order_of_calls_is_the_one_that_survives_a_power_cut(folder):
    folder.disk = FaultyDisk()
    large = {name: torch.zeros(100_000) for name in "ab"}  # what is small is written together with its neighbours
    folder.write(name(3), Content.of({**tree(3), **large}), {"run": "r1", "step": 3, "batch": 6})
    file = ["create", "write", "fsync", "size", "close"]
    many = ["create", *["write"] * 4, "fsync", "size", "close"]
    assert folder.disk.calls == ["mkdir", *many, *file, *file, "fsync_directory", "rename", "fsync_directory"]


def test_nothing_is_overwritten(folder):
    with pytest.raises(CheckpointError, match="is there already"):
        save(folder, 2)
    assert newest_step(folder) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.ESTALE])
@pytest.mark.parametrize("fault", ["once", "on"])
def test_every_call_of_a_save_fails_once_or_for_ever(folder, fault, number):
    for at in itertools.count():
        folder.disk = FaultyDisk(at, fault, number)
        error = raised_by(lambda: save(folder, 3))
        if error is None:
            break
        assert os.strerror(number) in str(error)
        assert isinstance(error.__cause__, OSError)
        calls, folder.disk = folder.disk.calls, FaultyDisk()
        if (folder.path / name(3)).exists():  # renamed, only its name is not durable, and nor can it be removed
            assert (fault, calls[-2:]) == ("on", ["fsync_directory", "rename"])
            assert newest_step(folder) == 3
            folder.remove(name(3))
        assert newest_step(folder) == 2
        left = [entry for entry in os.listdir(folder.path) if entry.startswith(".tmp-")]
        assert not left or fault == "on"
    assert at >= len(folder.disk.calls) > 15
    folder.disk = FaultyDisk()
    assert newest_step(folder) == 3


@pytest.mark.parametrize("fault", ["kill", "tear"])
def test_killed_at_every_call_of_a_save(folder, fault):
    folder.close()
    for at in itertools.count():

        def work(at=at):
            child = LocalFolder(folder.path)
            child.open("r1")
            child.disk = FaultyDisk(at, fault)
            save(child, 3)

        status = in_child(work)
        assert status in (0, -9)
        after = LocalFolder(folder.path)
        assert newest_step(after) in (2, 3)
        after.open("r1")
        assert not [entry for entry in os.listdir(folder.path) if entry.startswith((".tmp-", ".dead-"))]
        after.close()
        if status == 0:
            break
        if name(3) in after.names():
            after.remove(name(3))
    assert at > 15


def test_killed_at_every_call_of_a_removal(folder):
    folder.close()
    for at in itertools.count():

        def work(at=at):
            child = LocalFolder(folder.path, FaultyDisk(at, "kill"))
            child.remove(name(1))

        status = in_child(work)
        after = LocalFolder(folder.path)
        assert newest_step(after) == 2
        assert set(after.names()) <= {name(1), name(2)}
        for each in after.names():
            after.verify(each)
        if status == 0:
            break
        if name(1) not in after.names():
            save(after, 1)
    assert at == 2
    assert after.names() == [name(2)]


def test_a_full_disk_is_said_with_sizes(folder):
    folder.disk = FaultyDisk(3)
    with pytest.raises(
        CheckpointError, match=r"step-000000003 is not saved: No space left.*needs [\d,]+ bytes, [\d,]+ are free"
    ):
        save(folder, 3)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << (at % 8)
    path.write_bytes(data)


def damages():
    for file in (MANIFEST, STATE, TENSORS):
        yield f"flip {file}", lambda p, file=file: flip(p / file, 77)
        for size in (0, 1, 0.5, -1):
            yield f"cut {file} {size}", lambda p, file=file, size=size: cut(p / file, size)
        yield f"longer {file}", lambda p, file=file: (p / file).write_bytes((p / file).read_bytes() + b"x")
        yield f"delete {file}", lambda p, file=file: (p / file).unlink()
        yield f"swap {file}", lambda p, file=file: (p / file).write_bytes((p.parent / name(1) / file).read_bytes())
        yield f"directory {file}", lambda p, file=file: ((p / file).unlink(), (p / file).mkdir())
        yield f"pipe {file}", lambda p, file=file: ((p / file).unlink(), os.mkfifo(p / file))
        yield f"link {file}", lambda p, file=file: relink(p / file)
    yield "extra file", lambda p: (p / "evil.py").write_text("x")
    yield "pickle", lambda p: (p / STATE).write_bytes(b"\x80\x04cos\nsystem\n(S'echo'\ntR.")


def cut(path, size):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size * len(whole)) if isinstance(size, float) else size])


def relink(path):
    target = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(target)
    path.symlink_to(target)


DAMAGES = dict(damages())


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_newest_is_named_kept_and_passed_over(folder, damage):
    damage(folder.path / name(2))
    with pytest.warns(UserWarning, match=r"step-000000002.*passed over, it is kept as \.bad-step-000000002"):
        assert newest_step(folder) == 1
    assert (folder.path / ".bad-step-000000002").is_dir()
    assert newest_step(folder) == 1


@pytest.mark.parametrize("file", [MANIFEST, STATE, TENSORS])
def test_a_bit_flipped_anywhere_is_noticed(folder, file):
    path = folder.path / name(2) / file
    whole = path.read_bytes()
    for part in range(200):
        flip(path, part * len(whole) // 200 + part % 7)
        with pytest.raises(CheckpointError):
            load_one(folder, name(2))
        path.write_bytes(whole)
    load_one(folder, name(2))


def test_if_none_verifies_all_are_named_and_none_is_touched(folder):
    for step in (1, 2):
        flip(folder.path / name(step) / TENSORS, 300)
    with pytest.raises(CheckpointError, match=r"(?s)none of the 2 checkpoints.*step-000000001.*has changed.*scratch"):
        load_newest(folder)
    assert folder.names() == [name(1), name(2)]


def test_an_empty_folder_has_none(tmp_path):
    assert load_newest(LocalFolder(tmp_path)) is None
    assert load_newest(LocalFolder(tmp_path / "absent")) is None


def test_a_checkpoint_that_is_a_link_is_refused(folder, tmp_path):
    (folder.path / name(2)).rename(tmp_path / "elsewhere")
    (folder.path / name(2)).symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="is a link"):
        assert newest_step(folder) == 1
    assert (tmp_path / "elsewhere" / MANIFEST).exists()


def test_the_run_that_wrote_last_goes_on(folder):
    folder.close()
    other = LocalFolder(folder.path)
    other.open("r2")
    with pytest.raises(CheckpointError, match="no checkpoint of the run that wrote there last"):
        load_newest(other)
    other.write("step-000000001-r2", Content.of(tree(1)), {"run": "r2", "step": 1, "batch": 1})
    assert load_newest(other).name == "step-000000001-r2"
    other.close()


def test_a_second_writer_is_refused_with_the_name_of_the_first(folder):
    def work():
        with pytest.raises(CheckpointError, match=rf"another process writes .*: pid {os.getppid()} on .*run r1"):
            LocalFolder(folder.path).open("r2")

    assert in_child(work) == 0
    folder.close()
    again = LocalFolder(folder.path)
    again.open("r1")
    again.close()


def test_what_dead_writers_left_goes_and_what_others_left_stays(folder):
    folder.close()
    for entry in (".tmp-r1-step-000000003-1", ".dead-step-000000000-2", "mine", "step-notes", ".bad-step-000000000"):
        (folder.path / entry).mkdir()
    again = LocalFolder(folder.path)
    again.open("r1")
    again.close()
    entries = sorted(os.listdir(folder.path))
    assert entries == [".bad-step-000000000", ".lock", "mine", name(1), name(2), "step-notes"]


def test_a_place_that_cannot_be_written_to_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        LocalFolder(tmp_path / "file" / "x").open("r1")


def test_more_bytes_than_the_module_needs_are_refused(folder):
    with pytest.raises(CheckpointError, match="is it of another one"):
        folder.load(name(2), limit=10)


def test_in_memory_through_fsspec():
    folder = folder_of("memory://lightloop-test/run")
    assert load_newest(folder) is None
    for step in (1, 2, 3):
        save(folder, step)
    assert newest_step(folder) == 3
    folder.remove(name(1))
    folder.fs.pipe_file(f"{folder.root}/{name(3)}/{STATE}", b"{}")
    with pytest.warns(UserWarning, match="passed over"):
        assert newest_step(folder) == 2
    assert folder.names() == [name(2)]
    with pytest.raises(CheckpointError, match="is there already"):
        save(folder, 2)
    folder.fs.rm_file(f"{folder.root}/{name(2)}/{MANIFEST}")  # as a writer that died leaves it
    assert load_newest(folder) is None
    save(folder, 2)
    assert newest_step(folder) == 2
    folder.fs.rm(folder.root, recursive=True)


def test_reading_a_hostile_checkpoint_runs_nothing_and_is_quick(folder):
    def work():
        seen = []
        sys.addaudithook(lambda event, arguments: seen.append((event, arguments)))
        start = time.monotonic()
        for number, damage in enumerate(DAMAGES.values()):
            child = f"{name(2)}-{number}"
            os.mkdir(folder.path / child)
            for file in (MANIFEST, STATE, TENSORS):
                (folder.path / child / file).write_bytes((folder.path / name(2) / file).read_bytes())
            damage(folder.path / child)
            seen.clear()
            try:
                load_one(folder, child)
            except CheckpointError:
                pass
            else:
                os._exit(3)
            bad = [
                event for event, _ in seen if event in ("import", "exec", "compile", "os.system", "subprocess.Popen")
            ]
            opened = [str(arguments[0]) for event, arguments in seen if event == "open"]
            inside = (MANIFEST, STATE, TENSORS, child)  # by one name, in a directory that is open
            if bad or any(path not in inside and str(folder.path) not in path for path in opened):
                os._exit(4)
        os._exit(0 if time.monotonic() - start < 20 else 5)

    assert in_child(work) == 0
