"""A run's folder comes from someone else: whatever is in it, nothing outside of it is written, removed or waited for."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from lightloop import Module, Trainer
from lightloop.cli import front
from lightloop.testing import probe_batches
from lightloop_plugins.checkpoint.errors import CheckpointError
from tests.checkpoint.faults import in_child

RUN = "version_0"
OLD, NEWEST, NEXT = (f"step-{n:09d}-batch-{n:09d}" for n in (2, 4, 6))


class Net(Module):
    def __init__(self, width=2):
        super().__init__()
        self.save_hyperparameters()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def training_step(self, batch):
        self.log("loss", loss := (self.weight - batch).square().sum())
        return loss

    def test_step(self, batch):
        self.log("test", self.weight.detach().sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(root, **options):
    options = {"save_every": 2, "save_last": 2, "log_every_n_steps": 1, "trace": True, "seed": 1, **options}
    return Trainer(["-progress", "-model_summary"], default_root_dir=root, **options)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A run as someone gives it away."""
    root = tmp_path_factory.mktemp("given")
    trainer(root, max_epochs=1).fit(Net(), probe_batches(4))
    return root / "Net" / RUN


IN_RUN = [
    "metrics.csv",
    ".metrics.csv.part",
    "hparams.json",
    ".hparams.json.part",
    "trace.txt",
    "trace.json",
    ".lock",
    "metrics.until_step_4.csv",
    "checkpoints",
]
IN_FOLDER = [
    ".lock",
    NEWEST,
    NEXT,
    f"{OLD}/MANIFEST.json",
    f"{NEWEST}/MANIFEST.json",
    f"{NEWEST}/state.json",
    f"{NEWEST}/tensors.safetensors",
    f"{NEWEST}/more",
    ".tmp-x",
    ".dead-x",
    f".tmp-abc-{NEXT}-1",
    f".dead-{OLD}-1",
    f".bad-{NEWEST}",
]
NAMES = [*IN_RUN, *(f"checkpoints/{name}" for name in IN_FOLDER), "."]
KINDS = {
    "a link to a file": lambda path, mine: path.symlink_to(mine / "file"),
    "a link to a directory": lambda path, mine: path.symlink_to(mine / "folder", target_is_directory=True),
    "a link to a checkpoint": lambda path, mine: path.symlink_to(mine / "folder" / NEWEST, target_is_directory=True),
    "a relative link": lambda path, mine: path.symlink_to(os.path.relpath(mine / "file", path.parent)),
    "a dangling link": lambda path, mine: path.symlink_to(mine / "nothing"),
    "a link in a loop": lambda path, mine: path.symlink_to(path.name),
    "a link to a pipe": lambda path, mine: path.symlink_to(mine / "pipe"),
    "a link to a device": lambda path, mine: path.symlink_to("/dev/zero"),
    "a hard link": lambda path, mine: os.link(mine / "file", path),
    "a pipe": lambda path, mine: os.mkfifo(path),
    "a socket": lambda path, mine: bind(path),
    "a device": lambda path, mine: os.mknod(path, 0o20666, os.makedev(1, 5)),
    "a directory": lambda path, mine: (path.mkdir(), (path / "notes").write_text("theirs")),
    "a directory of links": lambda path, mine: (
        path.mkdir(),
        [(path / name).symlink_to(mine / "file") for name in ("MANIFEST.json", "state.json", "tensors.safetensors")],
    ),
}
CASES = [
    (name, kind)
    for name in NAMES
    for kind in KINDS
    if (name == ".") <= (kind in ("a link to a directory", "a dangling link", "a link in a loop", "a pipe"))
]
SAMPLE = CASES[3::13]


def bind(path):
    at = os.getcwd()
    os.chdir(path.parent)  # such a path must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(at)


def mine(path):
    """What a user has beside it, with all that could be taken for a part of a run."""
    folder = path / "folder"
    folder.mkdir(parents=True)
    (path / "file").write_text("mine")
    os.mkfifo(path / "pipe")
    for name in (".tmp-thesis", ".dead-letters", f".tmp-abc-{NEXT}-1", f".dead-{OLD}-1", NEWEST):
        (folder / name).mkdir()
        (folder / name / "state.json").write_text("mine")
    for name in ("metrics.csv", "hparams.json", "config.yaml"):
        (folder / name).write_text("mine")


def state(path):
    """Everything below ``path``, and when it was changed."""
    paths = sorted([path, *path.rglob("*")])
    found = {str(each): each.lstat() for each in paths}
    return {each: (s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for each, s in found.items()}


def make(given, root, name, kind):
    """The folder with something hostile in it, and the user's own beside; False where that cannot be made here."""
    run = root / "runs" / "Net" / RUN
    mine(root / "mine")
    path = run if name == "." else run / name
    if name == ".":
        run.parent.mkdir(parents=True)
    else:
        shutil.copytree(given, run)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    try:
        KINDS[kind](path, root / "mine")
    except PermissionError:
        return False
    return True


def attempts(root):
    """All that is done with such a folder; each is a function, and what it answers does not matter."""
    runs, run = root / "runs", root / "runs" / "Net" / RUN
    cli = [["list", run], ["inspect", run], ["verify", run], ["list", runs], ["verify", run / "checkpoints" / NEWEST]]
    cli += [["export", run, root / "out.safetensors", "--force"]]
    found = {
        **{" ".join(map(str, each)): lambda each=each: front.main(["checkpoint", *map(str, each)]) for each in cli},
        "load": lambda: Net.load_from_checkpoint(run),
        "test": lambda: trainer(runs).test(Net(), probe_batches(2), resume=str(run)),
        "test, newest": lambda: trainer(runs, run_version=0).test(Net(), probe_batches(2), resume="auto"),
        "resume, checkpoint": lambda: trainer(root / "my", max_epochs=2).fit(
            Net(), probe_batches(4), resume=str(run / "checkpoints" / NEWEST)
        ),
        "resume": lambda: trainer(root / "my", max_epochs=2).fit(Net(), probe_batches(4), resume=str(run)),
        "resume, newest": lambda: trainer(runs, max_epochs=2).fit(Net(), probe_batches(4), resume="auto"),
        "fit": lambda: trainer(runs, run_version=0, max_epochs=1).fit(Net(), probe_batches(4)),
    }
    folder = run / "checkpoints"
    if not folder.is_symlink():  # a link that a user gives as checkpoint_dir is the user's own
        found["fit, configured"] = lambda: trainer(runs, run_version=0, max_epochs=1, checkpoint_dir=folder).fit(
            Net(), probe_batches(4)
        )
    return found


REFUSALS = (CheckpointError, OSError)
PATIENCE = 60
"""Seconds after which what is done with a folder counts as hanging; on an idle machine it takes a tenth of one."""


def attempt(root):
    """What each attempt says; anything but success and a refusal is an error."""
    warnings.simplefilter("ignore")
    answers = {}
    for name, work in attempts(root).items():
        signal.alarm(PATIENCE)
        try:
            work()
        except REFUSALS as error:
            answers[name] = str(error)
        signal.alarm(0)
    return answers


def hold(given, root, name, kind):
    if not make(given, root, name, kind):
        pytest.skip("such a thing cannot be made here")
    before = state(root / "mine")

    def work():
        with contextlib.redirect_stdout(sys.stderr):
            answers = attempt(root)
        if WRITTEN.fullmatch(name) and (kind, name) not in HARMLESS:
            said = answers.get("fit", "")
            assert name.rpartition("/")[2].removesuffix(".part").lstrip(".") in said, (name, kind, answers)

    assert in_child(work) == 0, (name, kind)
    after = state(root / "mine")
    if "hard link" in kind:  # it counts its names, and that is all that may have changed of it
        before, after = ({p: s[:3] for p, s in each.items()} for each in (before, after))
    assert after == before


WRITTEN = re.compile(r"metrics\.csv|hparams\.json|trace\.(txt|json)|\.lock|checkpoints/\.lock")
"""Names that every fit writes to: what is there and is no file of the run is refused, with its name."""
HARMLESS = ()


@pytest.mark.parametrize(("name", "kind"), SAMPLE)
def test_nothing_outside_is_touched(given, tmp_path, name, kind):
    hold(given, tmp_path, name, kind)


@pytest.mark.torture
@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case not in SAMPLE])
def test_nothing_outside_is_touched_whatever_is_there(given, tmp_path, name, kind):
    hold(given, tmp_path, name, kind)


TOUCHES = (
    "open,openat,openat2,creat,unlink,unlinkat,rename,renameat,renameat2,rmdir,mkdir,mkdirat,truncate,ftruncate,link,linkat,"
    "symlink,symlinkat,mknod,mknodat,chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,utimensat,setxattr,bind,connect"
)


def traced(root, log):
    """Do all of it in a process whose calls to the system are written down, with the path behind each descriptor."""
    program = f"from tests.checkpoint.test_strangers import attempt; attempt(__import__('pathlib').Path({str(root)!r}))"
    command = ["strace", "-f", "-y", "-qq", "-e", f"trace={TOUCHES}", "-o", log, sys.executable, "-c", program]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)


def can_trace():
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.torture
@pytest.mark.skipif(not can_trace(), reason="needs strace, and that it may be used")
@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if "hard link" not in case[1]][::7])
def test_no_call_to_the_system_opens_or_changes_anything_outside(given, tmp_path, name, kind):
    if not make(given, tmp_path, name, kind):
        pytest.skip("such a thing cannot be made here")
    log, before = tmp_path / "log", state(tmp_path / "mine")
    done = traced(tmp_path, log)
    assert done.returncode == 0, done.stderr
    assert state(tmp_path / "mine") == before
    calls = log.read_text(errors="replace").splitlines()
    assert any("metrics.csv" in call or "checkpoints" in call for call in calls)  # it has seen what was done
    outside = [call for call in calls if f"{tmp_path}/mine" in call or re.search(r"= \d+</dev/(zero|full)", call)]
    if name == "checkpoints":  # who names a checkpoint in there goes through the link, and reads what it leads to
        outside = [call for call in outside if not re.search("open(at)?[(].*O_RDONLY.*(O_DIRECTORY|O_NONBLOCK)", call)]
    assert outside == []
    opened = [call for call in calls if re.search(r"\bopen(at)?\(", call) and f"{tmp_path}/runs" in call]
    assert [call for call in opened if not re.search("O_NONBLOCK|O_DIRECTORY|O_EXCL", call)] == [], (
        "they may wait for a pipe"
    )
