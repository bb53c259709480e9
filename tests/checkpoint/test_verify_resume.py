"""``lightloop verify-resume``: it says "the same" of a run that is, and names the first thing that is not."""

import os
import sys
import warnings

import pytest

from lightloop import Trainer
from lightloop.cli import front
from lightloop.cli.parser import make_parser
from lightloop.testing import TinyClassifier, classification_batches
from lightloop_plugins.checkpoint.commands import runs
from lightloop_plugins.checkpoint.commands.traces import Trace, first_difference, rows_that_differ
from tests.checkpoint.faults import in_child

NET = '''
import os, random, time
import torch
from torch.utils.data import DataLoader, Dataset
from lightloop import Callback
from lightloop.testing import TinyClassifier, classification_batches

class Net(TinyClassifier):
    def __init__(self):
        super().__init__()
        self.net.insert(1, torch.nn.Dropout(0.3))
        self.calls = 0

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("running", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

class Counts(Net):
    """Its loss depends on a plain attribute."""
    def training_step(self, batch, batch_idx):
        self.calls += 1
        return super().training_step(batch, batch_idx) * self.calls

class Clock(Net):
    """It logs what no two runs have in common."""
    def training_step(self, batch, batch_idx):
        self.log("seconds", time.perf_counter())
        return super().training_step(batch, batch_idx)

class Late(Net):
    """The same, but not before it is resumed."""
    def training_step(self, batch, batch_idx):
        if self.global_step > 6:
            self.log("seconds", time.perf_counter())
        return super().training_step(batch, batch_idx)

class System(Net):
    """It draws from what no seed determines."""
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + os.urandom(1)[0])

class Hidden(torch.optim.SGD):
    """An optimizer whose state_dict has not all of its state."""
    steps = 0
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=0.1 / self.steps)

class Steps(Net):
    def configure_optimizers(self):
        return Hidden(self.parameters(), 0.1)

class Draws(Net):
    def on_fit_start(self):
        random.random()

class Fails(Net):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("boom")

SAMPLES = [sample for x, y in classification_batches(6) for sample in zip(x, y)]

class Order:
    """A sampler with a memory of its own."""
    def __init__(self):
        self.passes = 0
    def __iter__(self):
        self.passes += 1
        order = list(range(48))
        random.Random(self.passes).shuffle(order)
        return iter(order)
    def __len__(self):
        return 48

def data():
    return {"train": DataLoader(SAMPLES, 8, shuffle=True), "val": classification_batches(2)}

def ordered():
    return DataLoader(SAMPLES, 8, sampler=Order())
'''


def forked(words, environ, log):
    """What :func:`runs.run_fit` does, in a process that has torch imported already."""

    def work():
        handle = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
        os.environ.update(environ)
        warnings.resetwarnings()
        code = front.main(["fit", *words])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return in_child(work)


@pytest.fixture
def verify(tmp_path, monkeypatch, capsys):
    """Runs the command where net.py is, and gives its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "net.py").write_text(NET)

    def call(module, *arguments, data="data"):
        words = ["--module", f"net.py:{module}", "--data", f"net.py:{data}", "--log_every_n_steps", "1", *arguments]
        code = front.main(["verify-resume", *words, "--plugins", "-progress,-model_summary"])
        return code, *capsys.readouterr()

    yield call
    sys.modules.pop("net", None)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """What a fit imports, once for all that are forked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_parser("fit", [])
        root = tmp_path_factory.mktemp("runs")
        Trainer(["-progress"], default_root_dir=root, seed=0).fit(TinyClassifier(), classification_batches(1))


@pytest.fixture
def fork(verify, imported, monkeypatch):
    monkeypatch.setattr(runs, "run_fit", forked)
    return verify


SAME = """run 1: whole, 12 batches
run 2: killed after batch 3
       resumed, to its end
the same to the bit: 12 batches, {rows} rows of metrics, and the state at the end
"""


def test_a_run_that_resumes_exactly(fork, tmp_path):
    code, out, err = fork("Net", "--max_epochs", "2", "--accumulate_grad_batches", "2")
    assert (code, out, err) == (0, SAME.format(rows=10), "")
    assert {*os.listdir(tmp_path)} - {"__pycache__"} == {"net.py"}  # Python may keep what it compiled


def test_it_names_what_the_step_depends_on_and_no_checkpoint_has(fork):
    code, out, _ = fork("Counts", "--max_epochs", "2", "--at", "2,7")
    lines = out.splitlines()
    assert lines[:5] == [
        "run 1: whole, 12 batches",
        "run 2: killed after batch 2",
        "       resumed, killed after batch 7",
        "       resumed, to its end",
        "differs first: the loss, in batch 3 (epoch 0)",
    ]
    assert lines[5].startswith(
        "probably: the step depends on something that is in no checkpoint, such as a plain attribute"
    )
    assert (code, len(lines)) == (1, 6)


@pytest.mark.parametrize(
    ("module", "data", "first", "reason"),
    [
        ("Net", "ordered", "the data, in batch 9 (epoch 1)", "the loader gives other batches after a resume"),
        pytest.param("Steps", "data", "the loss, in batch 5 (epoch 0)", "the step", marks=pytest.mark.torture),
        pytest.param("Draws", "data", None, "", marks=pytest.mark.torture),
    ],
)
def test_it_names_what_differs_first(fork, module, data, first, reason):
    code, out, _ = fork(module, "--max_epochs", "2", "--at", "8" if data == "ordered" else "3", data=data)
    if first is None:
        assert (code, out) == (0, SAME.format(rows=16))
    else:
        assert f"\ndiffers first: {first}\nprobably: {reason}" in out
        assert code == 1


@pytest.mark.torture
def test_a_metric_that_measures_time_is_found_or_ignored(fork):
    code, out, _ = fork("Clock", "--max_epochs", "2")
    assert "\nnot compared, for two runs of one seed differ in it anyway: seconds\nthe same to the bit" in out
    assert code == 0
    code, out, _ = fork("Late", "--max_epochs", "2")
    assert "\ndiffers first: metric seconds at step 8: " in out
    assert "--ignore" in out.splitlines()[-1]
    assert code == 1
    assert fork("Late", "--max_epochs", "2", "--ignore", "sec*")[0] == 0


@pytest.mark.torture
def test_a_run_that_does_not_repeat_itself_is_told_apart(fork):
    code, out, err = fork("System")
    assert err.startswith(
        "lightloop verify-resume: two runs of one seed differ already before one is resumed, first in the loss, in batch 1"
    )
    assert (code, out.count("\n")) == (1, 2)


def test_a_run_that_fails_is_told_with_the_end_of_its_output(fork):
    code, out, err = fork("Fails")
    assert err.startswith("lightloop verify-resume: the run ended with 1 before it should:\n  ")
    assert err.endswith("lightloop fit: RuntimeError: boom (at epoch 0, batch 0)\n")
    assert (code, out) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--at", "5,2"], "--at must be numbers of batches from 1, in rising order, such as 5,12; it is '5,2'"),
        (["--at", "x"], "--at must be numbers of batches from 1, in rising order, such as 5,12; it is 'x'"),
        (["--keep", "."], "--keep .: the folder is not empty"),
        (["3"], "'3' is no option: write --NAME VALUE"),
    ],
)
def test_nonsense_is_refused_before_anything_is_run(verify, arguments, error):
    assert verify("Net", *arguments) == (2, "", f"lightloop verify-resume: {error}\n")


def test_a_place_that_the_run_does_not_come_to_is_refused(fork):
    code, _, err = fork("Net", "--at", "6")
    assert (code, err) == (
        2, "lightloop verify-resume: the run has 6 batches: it can be killed after 1 to 5 of them, with --at\n"
    )  # fmt: skip


@pytest.mark.torture
@pytest.mark.processes
def test_in_processes_of_their_own(verify, tmp_path):
    code, out, err = verify("Net", "--max_epochs", "2", "--keep", "kept", "--accumulate_grad_batches", "2")
    assert (code, out, err) == (0, SAME.format(rows=10), "")
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names >= {"Net", "1-whole.log", "2-parts.log", "3-parts.log", "whole-0.jsonl", "parts-0.jsonl"}


# ---------------------------------------------------------------------------------------------------- where traces part


def batch(number, **met):
    return {"batch": number, "epoch": 0, "data": "d", "random": {"torch": "r", "numpy": "n"}, "loss": "l", **met}


def trace(*batches, rows=()):
    return Trace({each["batch"]: each for each in batches}, [(step, metrics) for step, metrics in rows])


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (trace(batch(1), batch(2)), trace(batch(1), batch(2)), None),
        (trace(batch(1), batch(2)), trace(batch(1), batch(2, loss="m")), "the loss, in batch 2 (epoch 0)"),
        (
            trace(batch(1)),
            trace(batch(1, loss="m", random={"torch": "r", "numpy": "o"})),
            "the random numbers of numpy, in batch 1 (epoch 0)",
        ),
        (trace(batch(1)), trace(batch(1, data="e", loss="m")), "the data, in batch 1 (epoch 0)"),
        (trace(batch(1), batch(2)), trace(batch(1)), "the data, in batch 2 (epoch 0)"),
    ],
)
def test_where_two_runs_part(one, other, wanted):
    found = first_difference(one, other)
    assert (None if found is None else str(found)) == wanted
    assert first_difference(one, other, until=0) is None


def test_rows_that_differ():
    one, two = (1.0).hex(), (2.0).hex()
    whole = trace(rows=[(1, {"a": one}), (2, {"a": one, "b": one})])
    assert list(rows_that_differ(whole, whole)) == []
    assert list(rows_that_differ(whole, trace(rows=[(1, {"a": two}), (2, {"a": two})]))) == [
        ("a", "metric a at step 1: 1.0, and 2.0 where the run was resumed"),
        ("b", "metric b at step 2: 1.0, and 'absent' where the run was resumed"),
    ]
    assert list(rows_that_differ(whole, trace(rows=whole.rows[:1]))) == [
        ("", "row 2 of the metrics is of step 2, and of None where the run was resumed")
    ]
    assert list(rows_that_differ(trace(rows=whole.rows[:1]), whole)) == [
        ("", "the resumed run has 1 rows of metrics too many")
    ]
