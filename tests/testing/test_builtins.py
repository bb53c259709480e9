"""Every built-in plugin passes the contract that third parties are held to."""

import csv
import fcntl
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lightloop.testing import LoggerContract, PluginContract, TinyClassifier, classification_batches
from lightloop.testing.contract import fit_on_rank
from lightloop.testing.ranks import run_ranks
from lightloop.toolkit import discover
from tests.plugins.test_tensorboard import shown

OPTIONS = {
    "accelerator": {"kind": "cpu"},
    "accumulate": {"batches": 2},
    "batch_size_find": {"mode": "power"},
    "clip": {"limit": 0.01},
    "compile": {"on": True, "backend": "eager"},
    "csv": {"flush_every": 100},
    "detect_anomaly": {"on": True},
    "device_stats": {"when": 1},
    "duration": {"max_epochs": 1},
    "early_stopping": {"monitor": "loss"},
    "ema": {"decay": 0.9},
    "fast_dev_run": {"batches": 1},
    "fused": {"on": True},
    "gpus": {"count": 1},
    "grad_norm": {"norm_type": 2.0},
    "limits": {"train": 1},
    "lr_find": {"attribute": True},
    "lr_monitor": {"per": "step"},
    "nonfinite": {"action": "warn"},
    "nonfinite_async": {"action": "warn"},
    "overfit": {"batches": 1},
    "precision": {"precision": "bf16-mixed"},
    "profiler": {"kind": True},
    "read_ahead": {"on": True},
    "reload_data": {"epochs": 1},
    "seed": {"seed": 3},
    "split_on_oom": {"on": True},
    "swa": {"start": 1},
    "tbptt": {"steps": 2},
    "terminate_on_nan": {"on": True},
    "time_limit": {"limit": 60},
    "trace": {"to": True},
}
"""With which they do what they are for; the rest needs none."""
OTHERS = {"swa": ["duration"], "time_limit": ["duration"], "devices": ["ddp"]}
TRAINER = {"swa": {"max_epochs": 2}, "time_limit": {"max_epochs": 1}}
NO_GPU = None if torch.cuda.is_available() else "there is no GPU of NVIDIA's"
CANNOT_RUN = {
    "cuda": NO_GPU,
    "dp": NO_GPU,
    "gpus": NO_GPU,
    "horovod": None if find_spec("horovod") else "Horovod is not installed; make test-horovod runs it",
    "mps": None if torch.backends.mps.is_available() else "there is no GPU of Apple's",
    "xla": None if find_spec("torch_xla") else "torch_xla is not installed; make test-xla runs it",
    "xla_spmd": None if find_spec("torch_xla") else "torch_xla is not installed; make test-xla runs it",
}
"""Why those cannot be run here that need what not everybody has."""
REFUSE = {"batch_size_find", "lr_find", "split_on_oom"}
"""They say themselves that they work in one process alone."""
OURS = [name for name, found in discover().items() if found.distribution == "lightloop" and not found.left_out_by]


class Sequences(TinyClassifier):
    """Batches are sequences, of shapes ``(n, time, 4)`` and ``(n, time)``."""

    def training_step(self, batch, batch_idx, hiddens=None):
        x, y = batch
        return {"loss": torch.nn.functional.cross_entropy(self(x).flatten(0, 1), y.flatten()), "hiddens": x[:, -1]}

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx)["loss"])


class Sized(TinyClassifier):
    """Makes its own batches, of a size that memory bounds."""

    batch_size = 2

    def train_dataloader(self):
        return [(torch.ones(self.batch_size, 4), torch.zeros(self.batch_size, dtype=torch.long))] * 3

    def training_step(self, batch, batch_idx):
        if len(batch[0]) > 8:
            raise MemoryError
        return super().training_step(batch, batch_idx)


def seeded(kind):
    torch.manual_seed(0)
    return kind()


def sequences(batches):
    return [(x.reshape(2, 4, 4), y.reshape(2, 4)) for x, y in classification_batches(batches)]


def ignored(*warnings):
    return {"pytestmark": [pytest.mark.filterwarnings(f"ignore:{warning}") for warning in warnings]}


SPECIAL = {
    "batch_size_find": {"module": lambda self: seeded(Sized)},
    "compile": ignored("The .grad attribute of a Tensor:UserWarning"),  # torch's compiler looks at it
    "gpus": ignored("'gpus' is now:DeprecationWarning"),
    "tbptt": {"module": lambda self: seeded(Sequences), "data": lambda self, batches=2: sequences(batches)},
    "time_limit": {"same_state": lambda self, one, other: one.keys() == other.keys()},  # time goes on
    "run_dir": {"same_state": lambda self, *states: len({Path(each["path"] or "").name for each in states}) == 1},
}


class Contract(PluginContract):
    """All of them are run in two processes by one launch, one after another."""

    boundaries = 0  # tests/resuming has each of them, with each of its options

    @pytest.fixture(autouse=True)
    def _launched(self, request, tmp_path_factory):
        if request.function.__name__ == "test_it_runs_in_several_processes":
            self.kept = launched(tmp_path_factory)

    def weights_on_ranks(self):
        files = [self.kept / f"{self.plugin}.{rank}" for rank in range(self.processes)]
        if all(file.exists() for file in files):
            return [torch.load(file) for file in files]
        return super().weights_on_ranks()  # one before it has failed, or this one


class InOneProcess(Contract):
    def test_it_runs_in_several_processes(self):
        for outcome in run_ranks(fit_on_rank, self.processes, type(self)):
            assert "works in one process" in outcome.error


def launched(tmp_path_factory):
    """The folder with what each rank came to for each plugin; the processes of pytest-xdist share one launch."""
    top = tmp_path_factory.getbasetemp()
    folder = (top.parent if "PYTEST_XDIST_WORKER" in os.environ else top) / "ranks"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            run_ranks(each_on_rank, 2, [globals()[f"Test_{name}"] for name in OURS], folder)
    return folder


def each_on_rank(contracts, folder):
    for contract in contracts:
        if contract.cannot_run is None and not issubclass(contract, InOneProcess):
            torch.save(fit_on_rank(contract), folder / f"{contract.plugin}.{os.environ['RANK']}")


class Logger(LoggerContract, Contract):
    pass


def rows_of_csv(self, directory):
    with open(directory / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(int(row["step"]), name, float(row[name])) for row in rows for name in row if name != "step" and row[name]]


READ = {"csv": rows_of_csv, "tensorboard": lambda self, directory: shown(directory)}
"""How the rows are read back that loggers have written."""


def contract(name):
    base = InOneProcess if name in REFUSE else Logger if name in READ else Contract
    given = {
        "plugin": name,
        "options": OPTIONS.get(name, {}),
        "others": OTHERS.get(name, ()),
        "trainer": TRAINER.get(name, {}),
        "cannot_run": CANNOT_RUN.get(name),
        "__module__": __name__,
        **({"rows": READ[name]} if name in READ else {}),
        **SPECIAL.get(name, {}),
    }
    return type(f"Test_{name}", (base,), given)


for _name in OURS:
    globals()[f"Test_{_name}"] = contract(_name)


def test_every_builtin_is_here():
    assert {name for name in globals() if name.startswith("Test_")} == {f"Test_{name}" for name in OURS}
    assert len(OURS) > 60
