"""The same module, trained by Lightning and by Lightloop."""

import copy
import csv
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    Timer,
)

import lightloop
from lightloop import Trainer
from tests.lightning.models import Classifier, Data, ManualAccumulation, ManualGAN, Overriding, loaders

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False, "logger": False}


def train(trainer, module, data=loaders, **options):
    """Train ``module()`` from the same beginning by a Trainer of either library."""
    torch.manual_seed(0)
    made = module()
    with warnings.catch_warnings():
        if trainer is pl.Trainer:
            warnings.simplefilter("ignore")  # of few workers, and of many things more
        trainer = trainer(**{**QUIET, "max_epochs": 3, **options})
        trainer.fit(made, *data())
    return made, trainer


def both(module, data=loaders, **options):
    """The module and the Trainer of Lightning, and ours; a callback may not be shared, so it is made for each."""
    made = [
        {name: [make() for make in value] if name == "callbacks" else value for name, value in options.items()}
        for _ in "12"
    ]
    return *train(pl.Trainer, module, data, **made[0]), *train(Trainer, module, data, weights_summary=None, **made[1])


def assert_same_weights(one, other):
    for (name, value), (_, twin) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(value, twin), name


def metrics(trainer):
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {
        name: pytest.approx(value, rel=1e-6)
        for name, value in found.items()
        if name.startswith(("val", "test", "width"))
    }


@pytest.mark.parametrize("schedule", ["step", "epoch", "plateau"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value", "accumulate_grad_batches": 4},
        {"precision": "bf16-mixed", "val_check_interval": 0.5},
        {"max_epochs": -1, "max_steps": 17, "limit_train_batches": 7},
    ],
    ids=str,
)
def test_automatic_optimization_ends_with_the_same_bits(options, schedule):
    one, theirs, other, ours = both(lambda: Classifier(schedule=schedule), **options)
    assert_same_weights(one, other)
    assert metrics(theirs) == metrics(ours) != {}
    assert ours.callback_metrics["train_loss_epoch"] == pytest.approx(
        float(theirs.callback_metrics["train_loss_epoch"]), rel=1e-6
    )
    assert ours.global_step == theirs.global_step
    if "max_steps" not in options:  # Lightning counts an epoch that was broken off as finished
        assert ours.current_epoch == theirs.current_epoch
    rates = [trainer.optimizers[0].param_groups[0]["lr"] for trainer in (theirs, ours)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("module", [ManualGAN, ManualAccumulation])
def test_manual_optimization_ends_with_the_same_bits(module):
    steps = []
    count = LambdaCallback(on_train_end=lambda trainer, module: steps.append(module.global_step))
    # Without validation, before which Lightning drops the gradients that are there.
    one, _, other, _ = both(module, lambda: loaders()[:1], callbacks=[lambda: count])
    assert_same_weights(one, other)
    assert steps[0] == steps[1] > 0


def test_what_a_module_overrides_is_used():
    one, _, other, _ = both(Overriding, gradient_clip_val=0.02)
    assert_same_weights(one, other)
    assert one.stepped == other.stepped == 36


class Told(Classifier):
    """Writes down what it is told."""


def _tell(name):
    def told(self, *arguments, **named):
        self.__dict__.setdefault("events", []).append(name)

    return told


EVENTS = [name for name in dir(pl.Callback) if name.startswith("on_") and not name.endswith("checkpoint")]
for event in [*EVENTS, "setup", "teardown", "prepare_data"]:
    if event != "on_exception":  # of callbacks alone
        setattr(Told, event, _tell(event))


def test_the_events_come_in_the_order_of_lightning():
    one, _, other, _ = both(Told, max_epochs=2, limit_train_batches=2, limit_val_batches=1)
    # Gradients are dropped when a window is over, here, and before the next goes backward, there; only callbacks are told
    # of the sanity check in Lightning.
    elsewhere = ("on_before_zero_grad", "on_sanity_check_start", "on_sanity_check_end")
    events = [[name for name in module.events if name not in elsewhere] for module in (one, other)]
    assert events[0] == events[1]
    assert one.events.count("on_before_zero_grad") == other.events.count("on_before_zero_grad") == 4


def test_early_stopping_stops_in_the_same_epoch():
    stops = []

    def make():
        stops.append(EarlyStopping("val_loss", patience=1, min_delta=0.05))
        return stops[-1]

    one, _, other, _ = both(lambda: Classifier(lr=0.5), callbacks=[make], max_epochs=30)
    assert 0 < stops[0].stopped_epoch == stops[1].stopped_epoch < 29
    assert stops[0].best_score.item() == pytest.approx(stops[1].best_score.item(), rel=1e-6)
    assert_same_weights(one, other)


def test_a_callback_finds_what_it_reads_on_the_trainer():
    class Reads(pl.Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.seen.append((trainer.current_epoch, batch_idx, outputs["size"], trainer.training))

        def on_train_epoch_end(self, trainer, pl_module):
            found = trainer.callback_metrics
            self.seen.append([round(found[name].item(), 5) for name in ("val_loss", "train_loss", "train_loss_epoch")])
            state = (
                trainer.state.fn,
                trainer.state.stage,
                trainer.is_global_zero,
                trainer.lightning_module is pl_module,
            )
            self.seen.append((*state, trainer.num_training_batches, trainer.max_epochs, pl_module.trainer is trainer))

    watching = []

    def make():
        watching.append(Reads())
        return watching[-1]

    both(Classifier, callbacks=[make], max_epochs=2)
    assert watching[0].seen == watching[1].seen != []


def test_rates_go_to_the_loggers(tmp_path):
    _, trainer = train(
        Trainer,
        Classifier,
        logger=["csv", "tensorboard"],
        callbacks=[LearningRateMonitor("step")],
        log_every_n_steps=4,
        max_epochs=1,
        default_root_dir=tmp_path,
    )
    with (Path(trainer.run_dir) / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("lr-SGD")]
    assert [(int(row["step"]), round(float(row["lr-SGD"]), 6)) for row in rows] == [
        (3, 0.07),
        (7, 0.0343),
        (11, 0.016807),
    ]


class Talks(Classifier):
    """Uses what is there for people: loggers, printing, and layers that are made when the run begins."""

    def configure_model(self):
        self.extra = torch.nn.Linear(2, 2)

    def on_train_start(self):
        self.print(f"{self.logger.name}, {self.logger.version}, {len(self.loggers)}")
        self.logger.experiment.add_scalar("drawn", 1.0, 0)
        self.logger.log_metrics({"own": torch.tensor(2.0)}, step=0)

    def on_train_epoch_start(self):
        self.log("begun", float(self.current_epoch))


def test_a_module_talks_to_loggers(tmp_path, capsys):
    options = {"logger": ["csv", "tensorboard"], "log_every_n_steps": 5, "max_epochs": 2, "default_root_dir": tmp_path}
    module, trainer = train(Trainer, Talks, **options)
    assert module.extra.weight.shape == (2, 2)
    assert "Talks, version_0, 1" in capsys.readouterr().out
    with (Path(trainer.run_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["own"]) for row in rows if row["own"]] == [("0", "2.0")]
    assert [(row["step"], row["epoch"], row["begun"]) for row in rows if row["begun"]] == [
        ("12", "0", "0.0"),
        ("24", "1", "1.0"),
    ]


class Transfers(Classifier):
    def __init__(self):
        super().__init__()
        del self.net
        self.backbone, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.backbone(x)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=0.1)


def test_a_backbone_is_frozen_and_thawed():
    one, _, other, _ = both(Transfers, callbacks=[lambda: BackboneFinetuning(1, verbose=False)])
    assert_same_weights(one, other)


def test_timer_and_functions_are_callbacks_too():
    ends = []
    timer = Timer(duration={"seconds": 3600})
    train(Trainer, Classifier, callbacks=[timer, LambdaCallback(on_fit_end=lambda *_: ends.append(1))])
    assert timer.time_elapsed() > 0
    assert ends == [1]


@pytest.mark.parametrize("how", ["keyword", "position"])
def test_a_data_module_gives_the_data(how):
    data = Data()
    torch.manual_seed(0)
    module, trainer = Classifier(), Trainer(**QUIET, max_epochs=3, weights_summary=None)
    if how == "keyword":
        trainer.fit(module, datamodule=data)
    else:
        trainer.fit(module, data)
    assert data.told == ["prepare_data", "setup fit", "teardown fit"]
    assert_same_weights(module, train(Trainer, Classifier)[0])
    assert trainer.validate(module, data) == trainer.test(module, datamodule=data)
    assert trainer.validate(module, dataloaders=loaders()[1])["val_loss"] > 0
    assert isinstance(trainer.predict(module, [torch.zeros(2, 8)])[0], torch.Tensor)


def test_loaders_by_lightnings_keywords():
    torch.manual_seed(0)
    module = Classifier()
    train_loader, val_loader = loaders()
    Trainer(**QUIET, max_epochs=3, weights_summary=None).fit(
        module, train_dataloaders=train_loader, val_dataloaders=val_loader
    )
    assert_same_weights(module, train(Trainer, Classifier)[0])


class Measured(Classifier):
    def __init__(self):
        super().__init__()
        self.train_accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.val_accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)

    def training_step(self, batch, batch_idx):
        self.train_accuracy(self(batch[0]), batch[1])
        self.log("val_of_train", self.train_accuracy, on_step=False, on_epoch=True)
        return self._loss(batch)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        if dataloader_idx == 0:
            self.val_accuracy.update(self(batch[0]), batch[1])
            self.log("val_accuracy", self.val_accuracy, add_dataloader_idx=False)
        self.log("val_loss", self._loss(batch))

    def on_train_epoch_end(self):
        self.log("val_twice", 2 * self.trainer.callback_metrics["val_accuracy"])


def test_metric_objects_and_several_loaders():
    _, theirs, other, ours = both(Measured, lambda: (loaders()[0], [loaders()[1], loaders()[1]]))
    assert metrics(theirs) == metrics(ours)
    assert sorted(metrics(ours)) == [
        "val_accuracy",
        "val_loss/dataloader_idx_0",
        "val_loss/dataloader_idx_1",
        "val_of_train",
        "val_twice",
    ]
    assert other.val_accuracy._update_count == other.train_accuracy._update_count == 0


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    whole, _ = train(Trainer, Classifier, callbacks=[EarlyStopping("val_loss", patience=9)])
    stop = EarlyStopping("val_loss", patience=9)
    saving = {"default_root_dir": tmp_path, "enable_checkpointing": True, "save_every": 5, "weights_summary": None}
    train(Trainer, Classifier, **saving, callbacks=[EarlyStopping("val_loss", patience=9)], max_steps=20)
    resumed, trainer = train(Trainer, Classifier, **saving, resume="auto", callbacks=[stop])
    assert trainer.global_step == 36
    assert_same_weights(whole, resumed)
    assert stop.best_score < torch.inf


def test_module_and_callbacks_are_afterwards_as_they_were():
    stop = EarlyStopping("val_loss")
    module = Classifier()
    before = [set(vars(thing)) for thing in (module, stop)]
    copies = []
    peek = LambdaCallback(on_train_start=lambda trainer, module: copies.append(copy.deepcopy(module)))
    Trainer(**QUIET, callbacks=[stop, peek], weights_summary=None).fit(module, *loaders())
    assert [set(vars(thing)) for thing in (module, stop)] == before
    assert module._trainer is None
    copies[0].log("nobody", 1.0)  # a copy that was made in the run logs nothing, and can be trained by itself
    Trainer(**QUIET, weights_summary=None).fit(copies[0], *loaders())


def test_what_cannot_be_carried_is_refused_by_name():
    with pytest.raises(TypeError, match=r"ModelCheckpoint cannot be carried: write Trainer\(monitor="):
        Trainer(**QUIET, callbacks=[ModelCheckpoint()]).fit(Classifier(), *loaders())

    class Configures(Classifier):
        def configure_callbacks(self):
            return [EarlyStopping("val_loss")]

    with pytest.raises(TypeError, match=r"Configures.configure_callbacks is not called here: give its callbacks"):
        Trainer(**QUIET).fit(Configures(), *loaders())

    class OnStep(Classifier):
        def validation_step(self, batch, batch_idx):
            self.log("x", 1.0, on_step=True, on_epoch=False)

    with pytest.raises(ValueError, match="'x': on_step=True alone has no meaning in evaluation"):
        Trainer(**QUIET).fit(OnStep(), *loaders())

    class Reaches(Classifier):
        def on_train_start(self):
            self.trainer.strategy.connect(None)

    with pytest.raises(AttributeError, match=r"trainer.strategy.connect of Lightning is not carried"):
        Trainer(**QUIET).fit(Reaches(), *loaders())


def test_lightnings_callbacks_work_with_modules_of_ours():
    class Ours(lightloop.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(8, 3)

        def training_step(self, batch):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("val_loss", 1.0)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    stop = EarlyStopping("val_loss", patience=2)
    result = Trainer(**QUIET, max_epochs=9, callbacks=[stop], weights_summary=None).fit(Ours(), *loaders())
    assert (result.epoch, stop.stopped_epoch) == (3, 2)
