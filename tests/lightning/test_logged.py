"""What is logged, and what follows from it, is the same in Lightning and here: rates, best epoch, the epoch of the stop."""

import csv
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Trainer

EPOCHS = [(9.0, 3.0, 1.0), (5.0, 4.0, 2.0), (2.0, 1.0, 7.0), (6.0, 6.0, 0.0), (1.0, 9.0, 3.0)]
"""The value of each batch; the batches have 4, 4 and 2 samples."""


def loaders(several=False):
    data = TensorDataset(torch.arange(10.0)[:, None])
    val = DataLoader(data, 4)
    return DataLoader(data, 4), [val, val] if several else val


class Logs(pl.LightningModule):
    """Logs ``x`` in training and ``v`` in validation, and has a plateau schedule on one of them."""

    def __init__(self, monitor, train, val, every=1):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.monitor, self.train_how, self.val_how, self.every = monitor, train, val, every
        self.mean = torchmetrics.MeanMetric()
        self.val_mean = torchmetrics.MeanMetric()

    def training_step(self, batch, batch_idx):
        value = torch.tensor(EPOCHS[self.current_epoch][batch_idx])
        self.log("x", value, **self.train_how)
        self.mean(value, len(batch[0]))
        self.log("o", self.mean, on_step=True, on_epoch=True)
        return self.w * value

    def on_train_batch_start(self, batch, batch_idx):
        self.log("begun", float(batch_idx), on_epoch=True)

    def on_train_epoch_end(self):
        self.log("ended", float(self.current_epoch))

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        value = torch.tensor(EPOCHS[self.current_epoch][2 - batch_idx])
        self.log("v", value, **self.val_how)
        if dataloader_idx == 0:
            self.val_mean(value, len(batch[0]))
            self.log("m", self.val_mean, on_step=True, on_epoch=True, add_dataloader_idx=False)

    def on_validation_epoch_end(self):
        self.log("validated", float(self.current_epoch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        schedule = {"scheduler": plateau, "monitor": self.monitor, "frequency": self.every}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Reads(pl.Callback):
    """Writes down what a callback finds, and the rates."""

    def __init__(self):
        self.seen, self.rates = [], []

    def read(self, event, trainer):
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.seen.append((event, trainer.current_epoch, found))

    def on_train_batch_end(self, trainer, *_):
        self.read("batch", trainer)

    def on_validation_epoch_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.read("validation", trainer)

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.read("validated", trainer)

    def on_train_epoch_start(self, trainer, module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer, module):
        self.read("epoch", trainer)

    def on_train_end(self, trainer, module):
        self.read("end", trainer)
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def rows(path):
    """Each metric that was written, with its values in order."""
    with path.open() as file:
        found = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    names = {name for row in found for name in row} - {"epoch", "step"}
    return {name: [row[name] for row in found if name in row] for name in sorted(names)}


def fit(library, make, tmp_path, several=False, patience=1, **options):
    module, reads = make(), Reads()
    stop = EarlyStopping(module.monitor, patience=patience)
    common = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "max_epochs": len(EPOCHS),
        "log_every_n_steps": 1,
        "callbacks": [stop, reads],
        **options,
    }
    torch.manual_seed(0)
    if library is pl:
        best = ModelCheckpoint(tmp_path, "{epoch}", monitor=module.monitor)
        common["callbacks"].append(best)
        trainer = pl.Trainer(
            **common, logger=CSVLogger(tmp_path, flush_logs_every_n_steps=1), enable_model_summary=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, *loaders(several))
        written, best_epoch = (
            Path(trainer.log_dir) / "metrics.csv",
            int(best.best_model_path.split("epoch=")[1].split(".")[0]),
        )
    else:
        trainer = Trainer(**common, monitor=module.monitor, default_root_dir=tmp_path, weights_summary=None)
        trainer.fit(module, *loaders(several))
        written = Path(trainer.run_dir) / "metrics.csv"
        best_epoch = int(trainer.plugin("checkpoint").best_path.rpartition("batch-")[2]) // 3 - 1
    return module, reads, stop, best_epoch, rows(written)


def compare(make, tmp_path, **options):
    one, theirs, stop, best, written = fit(pl, make, tmp_path / "there", **options)
    other, ours, our_stop, our_best, our_rows = fit(Trainer, make, tmp_path / "here", **options)
    assert torch.equal(one.w, other.w)
    assert ours.rates == theirs.rates
    assert (our_stop.stopped_epoch, our_stop.wait_count) == (stop.stopped_epoch, stop.wait_count)
    assert float(our_stop.best_score) == pytest.approx(float(stop.best_score), rel=1e-6)
    assert our_best == best
    assert [each[:2] for each in ours.seen] == [each[:2] for each in theirs.seen]
    for (event, epoch, there), (_, _, here) in zip(theirs.seen, ours.seen, strict=True):
        names = there if event not in DURING else [name for name in there if not name.startswith(TRAINING)]
        shared, there = {name: here.get(name) for name in names}, {name: there[name] for name in names}
        assert shared == pytest.approx(there, rel=1e-6), (event, epoch)
    for name, values in written.items():
        if name not in ("v_step", "m_step") and "_step/" not in name:  # batches of validation have no rows here
            assert our_rows[name] == pytest.approx(values, rel=1e-6), name
    return written


DURING = ("validation", "validated")
TRAINING = ("x", "o", "begun")
"""What was logged in training is there already in the validation that ends an epoch; in Lightning it is after that."""
WHEN = {
    "step": {"on_step": True, "on_epoch": False},
    "epoch": {"on_step": False, "on_epoch": True},
    "both": {"on_step": True, "on_epoch": True},
}
REDUCE = {"mean": "mean", "min": "min", "max": torch.max, "sum": sum}
MATRIX = [
    ("x", when, reduce, val)
    for when in WHEN
    for reduce in (REDUCE if when != "step" else ["mean"])
    for val in ("epoch", "both")
] + [("v", "both", reduce, val) for reduce in REDUCE for val in ("epoch", "both")]


@pytest.mark.parametrize(("monitor", "when", "reduce", "val"), MATRIX)
def test_every_value_and_what_follows_from_it_is_the_same(monitor, when, reduce, val, tmp_path):
    train = {**WHEN[when], "reduce_fx": REDUCE[reduce]}
    compare(lambda: Logs(monitor, train, {**WHEN[val], "reduce_fx": REDUCE[reduce]}), tmp_path)


@pytest.mark.parametrize("monitor", ["x_epoch", "v_epoch", "o", "m"])
def test_the_names_of_the_epoch_may_be_monitored(monitor, tmp_path):
    compare(lambda: Logs(monitor, WHEN["both"], WHEN["both"]), tmp_path)


def test_several_loaders_have_names_of_their_own(tmp_path):
    written = compare(lambda: Logs("v_epoch/dataloader_idx_1", WHEN["both"], WHEN["both"]), tmp_path, several=True)
    assert "v_epoch/dataloader_idx_0" in written


def test_validation_in_every_second_epoch(tmp_path):
    compare(lambda: Logs("v", WHEN["both"], WHEN["both"], 2), tmp_path, check_val_every_n_epoch=2, patience=3)
