"""What is kept, what is never touched, where a run leaves its files, and how much of a stranger's checkpoint is read."""

import errno
import os

import pytest
import torch

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import probe_batches
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format import limits
from lightloop_plugins.checkpoint.format.manifest import Manifest, write_manifest
from lightloop_plugins.checkpoint.storage import local
from lightloop_plugins.checkpoint.storage.disk import Disk
from lightloop_plugins.checkpoint.storage.find import load_best, load_newest, monitored
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.faults import in_child

QUIET = ["-progress", "-model_summary"]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*what differs:UserWarning"
)  # a resumed run has other options in these tests


class Net(Module):
    """Its loss is lowest in epoch 3; the metric has a name that no one expects."""

    metric = "loss"

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def training_step(self, batch):
        self.log(self.metric, float((self.current_epoch - 3) ** 2), on_epoch=True)
        return (self.weight - batch).square().sum()

    def test_step(self, batch):
        self.log("test", self.weight.detach().sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(root, module=None, plugins=(), epochs=8, **options):
    trainer = Trainer([*QUIET, *plugins], default_root_dir=root, max_epochs=epochs, **options)
    trainer.fit(module or Net(), probe_batches(2))
    return trainer


def names(trainer):
    return LocalFolder(trainer.run_dir / "checkpoints").names()


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(("last", "top"), [(1, 1), (2, 1), (1, 3), (3, 0), (1, -1)])
def test_as_many_are_kept_as_was_said_whatever_is_in_them(tmp_path, weights_only, threaded, last, top):
    trainer = fit(
        tmp_path, save_weights_only=weights_only, async_save=threaded, save_last=last, save_top_k=top, monitor="loss"
    )
    kept = [int(name.split("-")[1]) // 2 for name in names(trainer)]  # after which epoch
    best = {1: {4}, 3: {3, 4, 5}, 0: set(), -1: set(range(1, 9))}[top]
    assert set(kept) == best | set(range(9 - last, 9))
    wanted = kept[-1] if top == 0 and last < 5 else 4
    if top:
        assert trainer.plugin("checkpoint").best_path == str(
            trainer.run_dir / "checkpoints" / f"step-{2 * wanted:09d}-batch-{2 * wanted:09d}"
        )


def test_checkpoints_of_another_kind_do_not_count(tmp_path):
    first = fit(tmp_path, epochs=2, save_last=2)
    whole = names(first)
    fit(tmp_path, epochs=6, resume="auto", save_weights_only=True, save_last=1)
    assert names(first) == [*whole, "step-000000012-batch-000000012"]


USERS = [
    ".tmp-thesis",
    ".dead-letters",
    ".tmp-1-2-3",
    ".tmp-step-1-2",
    ".dead-step-3",
    ".tmp-notes-7",
    ".tmp-",
    ".dead-",
]
OURS = [".tmp-0123456789ab-step-000000003-batch-000000004-77", ".dead-step-000000003-batch-000000004-77"]


def test_what_is_called_nearly_as_our_own_is_never_touched(tmp_path):
    folder = tmp_path / "mine"
    for name in USERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "chapter.txt").write_text(name)
    for name in OURS:
        (folder / name).mkdir()
        (folder / name / "state.json").write_text("{}")
    for name in (OURS[0] + "7", OURS[1] + "7"):  # our name, with the user's notes in it
        (folder / name).mkdir()
        (folder / name / "state.json").write_text("{}")
        (folder / name / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match="stays: notes.txt in it is not Lightloop's"):
        fit(tmp_path, epochs=2, checkpoint_dir=folder)
    there = sorted(os.listdir(folder))
    assert [name for name in there if name.startswith(".")] == sorted([*USERS, OURS[0] + "7", OURS[1] + "7", ".lock"])
    assert all((folder / name / "chapter.txt").read_text() == name for name in USERS)


class Unsure(Disk):
    """Once, the name of a checkpoint is there and may not be on the device; and perhaps the checkpoint cannot be removed."""

    at = 0
    stuck = False

    def fsync_directory(self, at):
        Unsure.at += 1
        if Unsure.at == 4:  # the second save's, after its name was given
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fsync_directory(at)

    def rename(self, at, source, target):
        if self.stuck and target.startswith(".dead-") and Unsure.at == 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rename(at, source, target)


@pytest.mark.parametrize("stuck", [False, True])
def test_a_checkpoint_whose_name_may_not_be_on_the_device_is_removed_or_counted(tmp_path, monkeypatch, stuck):
    monkeypatch.setattr(local, "Disk", Unsure)
    monkeypatch.setattr(Unsure, "at", 0)
    monkeypatch.setattr(Unsure, "stuck", stuck)
    seen = []

    class Looks(Plugin):
        name, after = "looks", ("checkpoint",)

        @hookimpl
        def between_batches(self, loop):
            seen.append(len(LocalFolder(loop.trainer.run_dir / "checkpoints").names()))

    with pytest.warns(UserWarning, match=r"Input/output error.*Training goes on"):
        trainer = fit(tmp_path, plugins=[Looks], epochs=6, save_last=1, on_save_error="warn")
    assert seen[1::2][:2] == [1, 2 if stuck else 1]
    assert names(trainer) == ["step-000000012-batch-000000012"]


ODD = ["a'b", 'a"b', "a\\b", "a\nb", "x" * 205, "'", "é", "a b", "'min'"]


@pytest.mark.parametrize("metric", ODD)
def test_a_metric_of_any_name_ranks_checkpoints(tmp_path, metric):
    module = Net()
    module.metric = metric
    trainer = fit(tmp_path, module, plugins=["-csv"], monitor=metric, epochs=6)
    folder = LocalFolder(trainer.run_dir / "checkpoints")
    assert monitored(folder.manifest(folder.names()[-1])) == (metric, "min")
    assert load_best(folder).manifest.step == 8


def test_the_metric_of_an_older_checkpoint_is_still_found():
    def manifest(**body):
        return Manifest("r", 1, 1, body, {})

    options = {"checkpoint": {"monitor": "'val_loss'", "mode": "'max'"}}
    assert monitored(manifest(options=options)) == ("val_loss", "max")
    assert monitored(manifest(options={"checkpoint": {"monitor": "None", "mode": "'min'"}})) is None
    assert monitored(manifest(options=options, ranked_by=None)) is None


def huge(path, size=30 * 2**30):
    """Make the tensors of a checkpoint a sparse file of ``size`` bytes, of which the manifest speaks."""
    folder = LocalFolder(path.parent)
    manifest = folder.manifest(path.name)
    files = {**manifest.files, "tensors.safetensors": (size, "0" * 64)}
    body = {name: value for name, value in manifest.body.items() if name not in ("format", "files")}
    (path / "MANIFEST.json").write_bytes(write_manifest(body, files))
    os.truncate(path / "tensors.safetensors", size)


def test_a_stranger_s_checkpoint_of_30_gigabytes_is_refused_before_it_is_read(tmp_path, monkeypatch):
    trainer = fit(tmp_path, epochs=1)
    (name,) = names(trainer)
    path = trainer.run_dir / "checkpoints" / name
    huge(path)
    with open(tmp_path / "w.safetensors", "wb") as file:
        file.truncate(30 * 2**30)

    def read(*_):
        raise AssertionError("it was read")

    monkeypatch.setattr(os, "preadv", read)
    module = Net()
    for place in (path, trainer.run_dir):
        for work in (
            lambda place=place: Trainer(QUIET, default_root_dir=tmp_path).fit(
                module, probe_batches(2), resume=str(place)
            ),
            lambda place=place: Trainer(QUIET, default_root_dir=tmp_path).test(
                module, probe_batches(2), resume=str(place)
            ),
        ):
            monkeypatch.setattr(Disk, "read", sparing)
            with pytest.raises(CheckpointError, match=r"32212254720|has \d+ bytes where at most \d+ are expected"):
                work()
    monkeypatch.setattr(limits, "_memory", lambda: 2**33)  # whatever the machine of this test has
    with pytest.raises(CheckpointError, match="this machine has 8589934592 bytes of memory"):
        Net.load_from_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"w\.safetensors has 32212254720 bytes, and this machine has"):
        Net.load_from_checkpoint(tmp_path / "w.safetensors")


def sparing(self, at, name, limit):
    assert name == "MANIFEST.json"
    handle = os.open(name, os.O_RDONLY, dir_fd=at)
    with open(handle, "rb") as file:
        return bytearray(file.read())


def test_the_largest_checkpoint_of_a_small_module_is_below_the_limit():
    """As of LBFGS with a history of 100, averages, and a window that is open on 20 ranks."""
    module = torch.nn.Linear(1000, 1000)
    own = sum(parameter.nbytes for parameter in module.parameters())
    assert limits.allowance(module) > (1 + 2 * 100 + 2 + 20) * own


def read_only(path):
    for each in [path, *path.rglob("*")]:
        each.chmod(0o555 if each.is_dir() else 0o444)


def as_nobody(work):
    def child():
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        work()

    return in_child(child)


def open_to_all(path):
    for each in [path, *path.rglob("*")]:
        each.chmod(0o777 if each.is_dir() else 0o666)


def test_resumed_from_a_run_that_is_read_only_it_goes_on_in_a_new_one_and_says_from_where(tmp_path):
    theirs = fit(tmp_path / "theirs", epochs=2).run_dir
    before = {path: path.stat().st_mtime_ns for path in theirs.rglob("*")}
    (tmp_path / "mine").mkdir()
    open_to_all(tmp_path / "mine")
    for each in (tmp_path, tmp_path / "theirs"):
        each.chmod(0o755)
    read_only(theirs)

    def work():
        trainer = fit(tmp_path / "mine", epochs=4, resume=str(theirs))
        assert trainer.run_dir == tmp_path / "mine" / "Net" / "version_0"
        folder = LocalFolder(trainer.run_dir / "checkpoints")
        newest = load_newest(folder)
        assert newest.manifest.step == 8
        name = "step-000000004-batch-000000004"
        assert newest.manifest.body["resumed_from"] == str(theirs / "checkpoints" / name)
        rows = (trainer.run_dir / "metrics.csv").read_text().splitlines()
        assert rows

    assert as_nobody(work) == 0
    assert {path: path.stat().st_mtime_ns for path in theirs.rglob("*")} == before
    open_to_all(tmp_path)


def test_where_nothing_is_saved_or_logged_no_directory_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIGHTLOOP_RUNS", raising=False)
    tmp_path.chmod(0o555)

    def work():
        options = {"enable_checkpointing": False, "logger": False}
        trainer = Trainer(QUIET, max_epochs=1, **options)
        trainer.fit(Net(), probe_batches(2))
        trainer.fit(Net(), probe_batches(2), resume="auto")
        trainer.test(Net(), probe_batches(2))
        assert trainer.run_dir is None

    assert as_nobody(work) == 0
    assert list(tmp_path.iterdir()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", lambda *_, **__: 1 / 0)
        Trainer(QUIET, max_epochs=1, enable_checkpointing=False, logger=False).fit(Net(), probe_batches(2))
    tmp_path.chmod(0o755)


def test_a_run_without_a_place_says_so_and_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError, match=r"the run has no directory, .*cannot be made \(Not a directory\): give another default"
    ):
        fit(tmp_path / "file" / "runs")


class GoesElsewhere(Plugin):
    name = "goes_elsewhere"

    def __init__(self, place):
        self.place = place
        super().__init__()

    @hookimpl
    def before_batch(self, loop):
        if loop.total_batches == 1:
            os.chdir(self.place)


@pytest.mark.parametrize(
    "options", [{}, {"default_root_dir": "here"}, {"checkpoint_dir": "there"}, {"trace": "t.json"}]
)
def test_a_run_stays_where_it_began_when_its_process_goes_elsewhere(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIGHTLOOP_RUNS", raising=False)
    (tmp_path / "elsewhere").mkdir()
    options = {"max_epochs": 3, "save_every": 1, **options}
    trainer = Trainer([*QUIET, "trace", GoesElsewhere(tmp_path / "elsewhere")], **options)
    module = Net()
    trainer.fit(module, probe_batches(2))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert os.path.isabs(trainer.plugin("checkpoint").last_path)
    assert os.path.isdir(trainer.plugin("checkpoint").last_path)
    assert trainer.run_dir.is_relative_to(tmp_path)
    if "trace" in options:
        assert (tmp_path / "t.json").exists()
    trainer.test(module, probe_batches(2))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    os.chdir(tmp_path)
    again = Trainer([*QUIET, "trace", GoesElsewhere(tmp_path / "elsewhere")], **{**options, "max_epochs": 4})
    assert again.fit(Net(), probe_batches(2), resume="auto").global_step == 8
    assert again.run_dir == trainer.run_dir
    assert list((tmp_path / "elsewhere").iterdir()) == []
