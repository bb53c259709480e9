"""One holder at a time has the right to write in a directory, and what is in the directory is opened safely."""

import errno
import fcntl
import os
import signal
import socket
import threading
import time

import pytest

from lightloop.toolkit import BusyError, Writer, open_in, replace_in


def child(work):
    """A forked process that does ``work``, and is over when that is done."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def status(work):
    """The exit status of a forked process whose last expression is ``work()``; 1 for an error."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refused(path):
    try:
        Writer.of(path).release()
    except BusyError:
        return 3
    return 4


def test_a_second_one_is_refused_in_this_process_and_in_another_until_it_is_given_back(tmp_path):
    writer = Writer.of(tmp_path, "run 7")
    with pytest.raises(
        BusyError, match=rf"another Trainer of this process writes to {tmp_path}: pid {os.getpid()} on .*run 7"
    ):
        Writer.of(tmp_path)
    assert status(lambda: refused(tmp_path)) == 3
    assert (tmp_path / ".lock").read_text().endswith(", run 7\n")
    writer.release()
    assert os.listdir(tmp_path) == []
    assert status(lambda: refused(tmp_path)) == 4
    writer.release()  # once more is nothing
    Writer.of(tmp_path).release(keep=True)
    assert os.listdir(tmp_path) == [".lock"]
    Writer.of(tmp_path).release()


def test_no_other_descriptor_that_is_closed_gives_it_up(tmp_path):
    writer = Writer.of(tmp_path)
    for mode in ("r", "a"):
        (tmp_path / ".lock").open(mode).close()
    os.close(os.dup(writer._handle))
    with pytest.raises(BusyError):
        Writer.of(tmp_path)
    assert status(lambda: refused(tmp_path)) == 3
    writer.release()


def test_a_forked_process_neither_has_it_nor_gives_it_back_nor_keeps_it_from_others(tmp_path):
    here, there = os.pipe()

    def holder():
        writer = Writer.of(tmp_path)
        orphan = child(lambda: (writer.release(), time.sleep(600)))
        os.write(there, orphan.to_bytes(8))
        time.sleep(600)

    pid = child(holder)
    orphan = int.from_bytes(os.read(here, 8))
    try:
        time.sleep(0.05)
        with pytest.raises(BusyError):
            Writer.of(tmp_path)  # the forked one has not given it back
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.kill(orphan, 0)  # it lives
        Writer.of(tmp_path).release()  # and does not keep it
    finally:
        os.kill(orphan, signal.SIGKILL)
        os.close(here), os.close(there)


def test_a_started_program_does_not_keep_it(tmp_path):
    writer = Writer.of(tmp_path)
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    writer.release()
    try:
        Writer.of(tmp_path).release()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_many_that_take_it_and_give_it_back_are_never_two(tmp_path):
    """Also while the lock's file is removed by one and opened by another."""
    folder, witness = tmp_path / "folder", tmp_path / "witness"
    folder.mkdir()

    def work():
        taken = 0
        while taken < 60:
            try:
                writer = Writer.of(folder)
            except BusyError:
                continue
            with open(witness, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if another is in here
                taken += 1
            writer.release()
        return 0

    pids = [child(lambda: os._exit(work())) for _ in range(3)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch, number):
    def lacks(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", lacks)
    with pytest.warns(
        UserWarning, match=rf"{tmp_path} cannot be locked.*see to it that no second process writes there"
    ):
        Writer.of(tmp_path).release()


def test_a_directory_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(OSError, match="link is a link"):
        Writer.of(tmp_path / "link")
    assert os.listdir(tmp_path / "there") == []
    Writer.of(tmp_path / "link", follow=True).release()


def make(kind, path, outside):
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "dangling link":
        path.symlink_to(outside.parent / "nothing")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "hard link":
        os.link(outside, path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))
    elif kind == "device":
        try:
            os.mknod(path, 0o20666, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("making a device is not permitted here")


KINDS = ["link", "dangling link", "loop", "link to a device", "hard link", "pipe", "directory", "socket", "device"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_the_directory_is_refused_at_once_and_by_name(tmp_path, monkeypatch, kind):
    folder, outside = tmp_path / "folder", tmp_path / "mine"
    folder.mkdir()
    outside.write_text("mine")
    monkeypatch.chdir(folder)
    for name in ("x", ".lock", ".y.part"):
        make(kind, folder / name, outside)
    stuck = threading.Timer(20, os._exit, (9,))  # a pipe would be waited for as long as nothing is at its other end
    stuck.start()
    try:
        modes = [mode for mode in ("r", "r+b", "w", "a", "x") if (kind, mode) != ("hard link", "r")]
        for mode in modes:
            with pytest.raises(OSError, match=r"folder: x (is|has)"):
                open_in(folder, "x", mode)
        with pytest.raises(OSError, match=r"folder: x (is|has)"), replace_in(folder, "x"):
            pass
        with pytest.raises(OSError, match=r"folder: \.y\.part (is|has)"), replace_in(folder, "y"):
            pass
        with pytest.raises(OSError, match=r"folder: \.lock (is|has)"):
            Writer.of(folder)
    finally:
        stuck.cancel()
    assert outside.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["folder", "mine"]
    assert sorted(os.listdir(folder)) == [".lock", ".y.part", "x"]


def test_files_are_opened_as_by_open(tmp_path):
    with open_in(tmp_path, "a", "x", encoding="utf-8") as file:
        file.write("é")
    with open_in(tmp_path, "a", "ab") as file:
        assert file.tell() == 2
        file.write(b"b")
    with open_in(tmp_path, "a") as file:
        assert file.read() == "éb"
    with open_in(tmp_path, "a", "w") as file:
        file.write("c")
    assert (tmp_path / "a").read_text() == "c"
    with pytest.raises(FileExistsError):
        open_in(tmp_path, "a", "x")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/b"):
        open_in(tmp_path, "b")
    for name in ("", ".", "..", "a/b", "../a", "a\0"):
        with pytest.raises(ValueError, match="is not the name of a file"):
            open_in(tmp_path, name, "w")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / ".a.part").write_text("left by a process that died, and longer")
    with pytest.raises(ZeroDivisionError), replace_in(tmp_path, "a") as file:
        print("new", file=file, end=str(1 // 0))
    assert (os.listdir(tmp_path), (tmp_path / "a").read_text()) == (["a"], "old")
    with replace_in(tmp_path, "a") as file:
        file.write("new")
        assert (tmp_path / "a").read_text() == "old"
    assert (os.listdir(tmp_path), (tmp_path / "a").read_text()) == (["a"], "new")
