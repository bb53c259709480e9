"""What a monitor means: of a metric that is logged for an epoch, the epoch's value, for every reader alike."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from lightloop import Callback, Module, Trainer
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.early_stopping import EarlyStopping

EPOCHS = ((9.0, 1.0), (5.0, 2.0), (2.0, 3.0), (0.0, 4.0))
"""What is logged in each batch: its last value gets worse from epoch to epoch, its mean better: 5, 3.5, 2.5, 2."""
MEANS = [sum(epoch) / 2 for epoch in EPOCHS]


class Logs(Module):
    """Logs the values of :data:`EPOCHS` as ``x``, in training or in validation, and has a plateau schedule on it."""

    def __init__(self, stage="fit", monitor="x", **how):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.stage, self.monitor, self.how, self.seen = stage, monitor, how, []

    def training_step(self, batch, batch_idx):
        if self.stage == "fit":
            self.log("x", torch.tensor(EPOCHS[self.current_epoch][batch_idx]), **self.how)
        return self.w * 1.0

    def validation_step(self, batch, batch_idx):
        if self.stage == "validate":
            self.log("x", EPOCHS[self.current_epoch][batch_idx])

    def on_train_epoch_end(self):
        self.seen.append(dict(self.trainer.callback_metrics))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": self.monitor}}


class Rates(Callback):
    def __init__(self):
        self.rates = []

    def on_train_epoch_start(self, trainer):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


BOTH = {"on_step": True, "on_epoch": True}
EPOCH = {"on_step": False, "on_epoch": True}


def run(module, tmp_path, left_out=(), **options):
    rates, data = Rates(), [torch.zeros(2, 1)] * 2
    trainer = Trainer(
        ["-progress", *left_out],
        callbacks=[rates],
        monitor=module.monitor,
        early_stop_callback=EarlyStopping(module.monitor, patience=0),
        default_root_dir=tmp_path,
        logger=False,
        weights_summary=None,
        num_sanity_val_steps=0,
        **{"max_epochs": 4, **options},
    )
    result = trainer.fit(module, data, data)
    return result, trainer, [*rates.rates, trainer.optimizers[0].param_groups[0]["lr"]]


@pytest.mark.parametrize("left_out", [(), ("-log_every",)])
@pytest.mark.parametrize("reduce", ["mean", "sum", "min"])
@pytest.mark.parametrize(
    ("stage", "monitor", "how"),
    [("fit", "x", BOTH), ("fit", "x_epoch", BOTH), ("fit", "x", EPOCH), ("validate", "x", {})],
)
def test_at_the_end_of_an_epoch_every_reader_has_the_epochs_value(stage, monitor, how, reduce, left_out, tmp_path):
    if stage == "fit":
        how = {**how, "reduce": reduce}
    folded = {"mean": MEANS, "sum": [sum(epoch) for epoch in EPOCHS], "min": [min(epoch) for epoch in EPOCHS]}
    values = folded[reduce if stage == "fit" else "mean"]
    module = Logs(stage, monitor, **how)
    better = [index for index, value in enumerate(values) if value < min(values[:index], default=99.0)]
    worse = next((index for index in range(4) if index not in better), None)
    result, trainer, rates = run(module, tmp_path, left_out)
    stopper = trainer.plugin("early_stopping")
    ended = 4 if worse is None else worse + 1
    assert result.epoch == ended
    assert rates == [1.0] * ended + [1.0 if worse is None else 0.5]
    assert (stopper.best_score, stopper.wait_count) == (min(values[:ended]), int(worse is not None))
    assert f"batch-{2 * (1 + values[:ended].index(min(values[:ended]))):09d}" in trainer.plugin("checkpoint").best_path
    assert result.metrics[monitor] == trainer.callback_metrics[monitor] == values[ended - 1]
    if stage == "fit":
        assert [seen[monitor] for seen in module.seen] == values[:ended]


def test_the_readers_of_the_last_step_of_an_epoch_have_its_own_name(tmp_path):
    _, trainer, _ = run(Logs(**BOTH), tmp_path)
    assert trainer.callback_metrics == {"x": 2.0, "x_step": 4.0, "x_epoch": 2.0}


def test_while_an_epoch_lasts_the_name_is_the_steps(tmp_path):
    seen = []

    class Reads(Logs):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append((self.current_epoch, batch_idx, self.trainer.callback_metrics))

    run(Reads(**BOTH), tmp_path, max_epochs=2)
    assert seen[1][2] == {"x": 1.0, "x_step": 1.0, "x_epoch": 5.0}
    assert seen[2][2] == {"x": 5.0, "x_step": 5.0, "x_epoch": 5.0}
    assert seen[3][2] == {"x": 2.0, "x_step": 2.0, "x_epoch": 3.5}


def test_a_value_of_the_middle_of_an_epoch_is_never_a_score(tmp_path):
    """Validated and saved after each batch, the second of which is worse in each epoch but the last."""
    module = Logs(**BOTH)
    _, trainer, _ = run(module, tmp_path, val_check_interval=1, save_every="1 batch", save_last=99)
    assert trainer.plugin("early_stopping").best_score == 2.0
    scores = {}
    for path in sorted((tmp_path).rglob("MANIFEST.json")):
        body = json.loads(path.read_text())
        body = body.get("body", body)
        scores[body["batch"]] = body["metrics"].get("x")
    assert scores == {1: None, 2: 5.0, 3: 5.0, 4: 3.5, 5: 3.5, 6: 2.5, 7: 2.5, 8: 2.0}
    assert "batch-000000008" in trainer.plugin("checkpoint").best_path


def test_schedules_of_steps_have_the_steps_value():
    given = []

    class Steps(Logs):
        def configure_optimizers(self):
            setup = super().configure_optimizers()
            setup["lr_scheduler"] |= {"interval": "step"}
            return setup

        def lr_scheduler_step(self, scheduler, metric):
            given.append(float(metric))

    Trainer(["-*", "lr_schedule"], max_epochs=4).fit(Steps(**BOTH), [torch.zeros(2, 1)] * 2)
    assert given == [*itertools.chain(*EPOCHS)]
    with pytest.raises(ValueError, match="'x' is logged with on_epoch alone and has a value when the epoch is over"):
        Trainer(["-*", "lr_schedule"], max_epochs=4).fit(Steps(**EPOCH), [torch.zeros(2, 1)] * 2)


@pytest.mark.parametrize("stop", range(2, 9))
@pytest.mark.parametrize("how", [BOTH, EPOCH], ids=["both", "epoch"])
def test_a_resumed_run_sees_what_the_whole_one_sees(how, stop, tmp_path):
    def fit(root, module, **options):
        result, trainer, _ = run(module, tmp_path / root, save_every="1 batch", run_name="one", **options)
        stopper = trainer.plugin("early_stopping")
        best = trainer.plugin("checkpoint").best_path.rpartition("/")[2]
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        return result.metrics, result.epoch, rate, stopper.best_score, stopper.wait_count, best

    class Stops(Logs):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if self.loop.total_batches + 1 == stop:
                raise RuntimeError("killed")

    class Counts(Logs):
        trained = 0

        def training_step(self, batch, batch_idx):
            self.trained += 1
            return super().training_step(batch, batch_idx)

    with pytest.raises(RuntimeError, match="killed"):
        fit("parts", Stops(**how))
    resumed = Counts(**how)
    assert fit("parts", resumed, resume="auto") == fit("whole", Logs(**how))
    assert resumed.trained == 9 - stop


def test_names_that_meet_are_told():
    class Meets(Logs):
        def training_step(self, batch, batch_idx):
            self.log(f"x_{self.how['last']}", 1.0, **(EPOCH if self.how["last"] == "epoch" else {}))
            self.log("x", 2.0, on_step=True, on_epoch=True)
            return self.w * 1.0

    for last in ("step", "epoch"):
        with pytest.raises(
            ValueError, match=f"two metrics are called 'x_{last}': one that is logged as 'x_{last}' and"
        ):
            Trainer(["-*"]).fit(Meets(last=last), [torch.zeros(2, 1)])


class TestAMisspeltMonitorOfCheckpoints:
    def fit(self, tmp_path, **options):
        options = {"monitor": "val_los", "max_epochs": 3, "num_sanity_val_steps": 0, **options}
        trainer = Trainer(["-progress"], default_root_dir=tmp_path, logger=False, weights_summary=None, **options)
        module, data = Logs("validate", "x"), [torch.zeros(2, 1)] * 2
        module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), 1.0)
        trainer.fit(module, data, data)
        return trainer

    def test_it_is_told_once_with_the_names_that_there_are(self, tmp_path):
        with pytest.warns(
            UserWarning, match=r"monitor='val_los' names no metric that has been logged; there are x\."
        ) as told:
            assert self.fit(tmp_path).plugin("checkpoint").best_path is None
        assert len(told) == 1
        with pytest.warns(UserWarning, match="monitor='xs' names no metric that has been logged, did you mean 'x'?"):
            self.fit(tmp_path, monitor="xs")

    def test_it_is_an_error_if_that_is_asked_for(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"monitor='val_los' names no metric .* monitor_strict=False"):
            self.fit(tmp_path, monitor_strict=True)

    def test_a_metric_of_validation_is_waited_for(self, tmp_path):
        options = {"monitor_strict": True, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 2}
        trainer = self.fit(tmp_path, monitor="x", **options)
        assert "batch-000000004" in trainer.plugin("checkpoint").best_path

    def test_a_run_without_a_pass_of_validation_is_told_at_its_end(self, tmp_path):
        with pytest.warns(UserWarning, match="monitor='x' names no metric .*; there are none"):
            self.fit(tmp_path, monitor="x", check_val_every_n_epoch=9)
