"""What has changed between two parts of a run is told, each thing by its name, and refused under ``resume_strict``."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Module, Plugin, Trainer, hookimpl, option
from lightloop_plugins.checkpoint.errors import CheckpointError

PLAIN = {"samples": 64, "size": 8, "values": 0.0, "shuffle": True, "lr": 0.1, "schedule": None, "hidden": 4}


class Net(Module):
    def __init__(self, lr=0.1, schedule=None, hidden=4):
        super().__init__()
        self.save_hyperparameters("hidden")
        self.layer, self.lr, self.schedule = nn.Linear(2, 1), lr, schedule

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("a", loss, on_epoch=True)
        self.log("b", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        if self.schedule is None:
            return optimizer
        scheduler = self.schedule(optimizer, self.loop.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(directory, resume=None, data=None, **options):
    given = {name: options.pop(name, value) for name, value in PLAIN.items()}
    if data is None:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(given["samples"], 2, generator=generator) + given["values"]
        data = DataLoader(TensorDataset(x), given["size"], shuffle=given["shuffle"])
    module = Net(given["lr"], given["schedule"], given["hidden"])
    options = {"checkpoint_dir": directory, "max_epochs": 1, **options}
    listed = ["-progress", "-model_summary", *options.pop("plugins", [])]
    Trainer(listed, resume=resume, **options).fit(module, data)


def told(directory, first, then, **options):
    """What is said of a run that goes on with ``then`` where it began with ``first``; under resume_strict it is refused."""
    fit(directory, **first)
    with pytest.raises(CheckpointError, match="resume_strict is set") as refused:
        fit(directory, "auto", resume_strict=True, **then)
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.suppress(ValueError),
    ):  # OneCycleLR ends with its steps
        warnings.simplefilter("always")
        fit(directory, "auto", **then)
    said = [str(each.message) for each in caught if "what differs" in str(each.message)]
    assert len(said) == 1
    assert said[0].splitlines()[1:] == str(refused.value).splitlines()[1:]
    return said[0]


CHANGES = {
    "samples": ({}, {"samples": 80}, ["data: batches: then 8, now 10", "data: samples: then 64, now 80"]),
    "fewer samples": ({}, {"samples": 48}, ["data: samples: then 64, now 48"]),
    "values": ({}, {"values": 1.0}, ["data: values: then"]),
    "batch size": ({}, {"size": 4}, ["data: batch size: then 8, now 4"]),
    "order": ({}, {"shuffle": False}, ["data: order: then 'RandomSampler', now 'SequentialSampler'"]),
    "seed": ({"seed": 7}, {"seed": 8}, ["seed.seed: then 7, now 8"]),
    "hyperparameter": ({}, {"hidden": 5}, ["hyperparameter hidden: then 4, now 5"]),
    "learning rate": ({}, {"lr": 0.2}, ["optimizer 0 (SGD): lr: then 0.1, now 0.2"]),
    "monitor": ({"monitor": "a"}, {"monitor": "b"}, ["checkpoint.monitor: then 'a', now 'b'"]),
    "mode": ({"monitor": "a"}, {"monitor": "a", "monitor_mode": "max"}, ["checkpoint.mode: then 'min', now 'max'"]),
    "accumulation": (
        {"accumulate_grad_batches": 2},
        {"accumulate_grad_batches": 4},
        ["accumulate.batches: then 2, now 4"],
    ),
    "clipping": ({"gradient_clip_val": 1.0}, {"gradient_clip_val": 2.0}, ["clip.limit: then 1.0, now 2.0"]),
}
SCHEDULES = {
    "linear": (
        lambda o, n: lr_scheduler.LinearLR(o, 1.0, 0.0, total_iters=n),
        "LinearLR): total_iters: then 8, now 16",
    ),
    "cosine": (lr_scheduler.CosineAnnealingLR, "CosineAnnealingLR): T_max: then 8, now 16"),
    "one cycle": (lambda o, n: lr_scheduler.OneCycleLR(o, 0.1, n), "OneCycleLR): total_steps: then 8, now 16"),
    "function": (lambda o, n: lr_scheduler.LambdaLR(o, lambda step: max(0.0, 1 - step / n)), "function 0 at 5: then"),
    "in a row": (
        lambda o, n: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.LinearLR(o, 1.0, 0.0, n - 2)], [2]
        ),
        "SequentialLR): _schedulers: then",
    ),
}


@pytest.mark.parametrize("first", CHANGES)
def test_a_change_is_told_by_its_name(tmp_path, first):
    before, after, lines = CHANGES[first]
    said = told(tmp_path, before, after)
    for line in lines:
        assert line in said


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_that_was_made_for_another_length_is_told(tmp_path, kind):
    schedule, line = SCHEDULES[kind]
    assert line in told(tmp_path, {"schedule": schedule}, {"schedule": schedule, "max_epochs": 2})


def test_a_schedule_that_no_length_changes_is_not(tmp_path):
    schedule = lambda optimizer, total: lr_scheduler.StepLR(optimizer, 3)
    fit(tmp_path, schedule=schedule)
    fit(tmp_path, "auto", schedule=schedule, max_epochs=2, resume_strict=True)


@pytest.mark.parametrize(
    "options",
    [
        {"save_last": 5, "save_every": "3 batches", "async_save": True},
        {"log_every_n_steps": 1},
        {"max_epochs": 3},
        {"num_sanity_val_steps": 0},
    ],
)
def test_what_changes_no_number_is_not_told(tmp_path, options):
    fit(tmp_path)
    fit(tmp_path, "auto", resume_strict=True, **options)


def test_batches_in_a_list_are_told_apart_by_some_of_their_values(tmp_path):
    batches = [(torch.full((4, 2), float(n)),) for n in range(5)]
    fit(tmp_path, data=batches)
    fit(tmp_path, "auto", data=[(x.clone(),) for (x,) in batches], resume_strict=True)
    batches[4][0][:] = 7.0
    with pytest.raises(CheckpointError, match="data: values"):
        fit(tmp_path, "auto", data=batches, resume_strict=True)


def test_nothing_is_read_of_data_that_is_not_in_memory(tmp_path):
    class Files(torch.utils.data.Dataset):
        read = 0

        def __len__(self):
            return 6

        def __getitem__(self, index):
            self.read += 1
            return (torch.ones(2) * index,)

    data = Files()
    fit(tmp_path, data=DataLoader(data, 2))
    data.read = 0
    fit(tmp_path, "auto", data=DataLoader(data, 2), resume_strict=True)
    assert data.read == 0


class Counts(Plugin):
    """Has a field that is no option, but what it counts."""

    name = "counts"
    state = ("count",)

    size: int = option(1, "How much.")
    count: int = 0

    @hookimpl
    def after_batch(self, loop):
        self.count += 1


def test_what_a_plugin_counts_is_no_option_that_has_changed(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(tmp_path, plugins=[Counts()])
        fit(tmp_path, "auto", max_epochs=2, plugins=[Counts()], resume_strict=True)
    fit(tmp_path / "other", plugins=[Counts()])
    with pytest.warns(UserWarning, match="counts.size: then 1, now 2"):
        fit(tmp_path / "other", "auto", max_epochs=2, plugins=[Counts(2)])
