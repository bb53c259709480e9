"""Checkpoints that earlier versions have written go on loading; there is one of each format in tests/golden.

To add one when the format changes::

    python -m tests.checkpoint.test_golden tests/golden/format-N

Those that are there are never made anew: that they can be read as they are is what is tested.
"""

import contextlib
import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop_plugins.checkpoint.format.manifest import FORMAT
from lightloop_plugins.checkpoint.storage.find import load_newest, load_one
from lightloop_plugins.checkpoint.storage.local import LocalFolder

GOLDEN = Path(__file__).parent.parent / "golden"
FORMATS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
BATCHES = [torch.arange(12.0).reshape(4, 3).sin() + 0.1 * number for number in range(6)]
LAST = 9
"""The batch after which the golden run broke off: the second epoch, in the middle of a window."""


class Net(Module):
    """Never changed: the checkpoints are of it."""

    def __init__(self, width=4, name="golden"):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) * 0.1 * (number + 1))

    def training_step(self, batch):
        self.seen += len(batch)
        loss = (self.body(batch).squeeze(1) - batch.sum(1)).square().mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Counts(Plugin):
    """Counts batches in its own state, and ends the golden run."""

    name = "counts_for_test"
    state_version = 1

    def validate(self):
        self.batches = {"done": 0}
        self.last = None

    @hookimpl
    def before_batch(self, loop):
        if loop.total_batches == self.last:
            raise ZeroDivisionError

    @hookimpl
    def after_batch(self):
        self.batches["done"] += 1

    def state_dict(self):
        return {"batches": self.batches, "kept": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}

    def load_state_dict(self, state):
        self.batches = state["batches"]


def fit(folder, counts, resume=None):
    options = {"accumulate_grad_batches": 4, "ema_decay": 0.5, "gradient_clip_val": 1.0, "save_every": "1 batches"}
    plugins = ["-*", "lockstep", "run_dir", "checkpoint", "lr_schedule", "duration", "early_stopping", counts]
    options |= {"early_stopping_monitor": "loss", "early_stopping_patience": 5, "max_epochs": 4, "save_last": 1}
    trainer = Trainer(plugins, checkpoint_dir=folder, default_root_dir="runs", **options)
    module = Net()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*is of another run than this; what differs")  # versions do
        result = trainer.fit(module, BATCHES, resume=resume)
    return module, trainer, result


def by_hand(path):
    """How the golden run goes on in plain torch, from the tensors of its file: the weights at the end, and their average."""
    tensors = load_file(path / "tensors.safetensors")

    def part(prefix):
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    module = Net()
    module.load_state_dict({**part("module.parameters."), **part("module.buffers.")})
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05 * 0.9**2)
    for number, (name, parameter) in enumerate(module.named_parameters()):
        optimizer.state[parameter] = part(f"optimizers.0.state.state.{number}.")
        parameter.grad = tensors[f"ranks.0.gradients.{name}"]
    average, left, size = part("plugins.ema.state.average."), 1, 4
    for number in range(LAST, 24):
        if not left:
            left = size = min(4, 6 - number % 6)
        (module.body(BATCHES[number % 6]).squeeze(1) - BATCHES[number % 6].sum(1)).square().mean().div(size).backward()
        module.seen += 4
        left -= 1
        if not left:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] *= 0.9
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    average[name] = average[name].lerp(parameter, 0.5)
    return module.state_dict(), average


def same(found, wanted):
    """Whether two mappings have the same tensors under the same names."""
    return found.keys() == wanted.keys() != set() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture(params=FORMATS)
def golden(request, tmp_path, monkeypatch):
    """A copy of a golden checkpoint in a folder, and what is known of it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / request.param, tmp_path / "golden")
    return Path("golden/checkpoints"), json.loads(Path("golden/expected.json").read_text())


def test_there_is_one_of_each_format():
    assert [f"format-{number}" for number in range(1, FORMAT + 1)] == FORMATS


def test_it_verifies_and_says_what_it_is(golden):
    folder, expected = golden
    (name,) = LocalFolder(folder).names()
    assert name == expected["name"]
    LocalFolder(folder).verify(name)
    assert load_newest(LocalFolder(folder)).manifest.place == (2, LAST)
    assert load_one(LocalFolder(folder), name).state["hparams"] == {"width": 4, "name": "golden"}


def test_a_run_goes_on_from_it_as_it_does_by_hand(golden):
    """To the bit, and so computed here: a last digit, which differs by processor, decides where AdamW takes a bias to."""
    folder, expected = golden
    weights, average = by_hand(folder / expected["name"])
    counts = Counts()
    module, trainer, result = fit(folder, counts, "auto")
    assert (result.status, result.epoch, result.global_step) == ("finished", 4, 8)
    assert counts.batches == {"done": 24}
    assert same(module.state_dict(), weights)
    ema = next(plugin for plugin in trainer.loop.plugins if plugin.name == "ema")
    assert same(ema.average, average)


def test_its_weights_can_be_loaded_alone(golden):
    folder, expected = golden
    module = Net.load_from_checkpoint(folder / expected["name"])
    assert module.seen == 4 * LAST


def test_a_plugin_of_a_later_version_takes_its_state_over(golden):
    class Later(Counts):
        state_version = 2

        @classmethod
        def migrate_state(cls, state, version):
            assert version == 1
            return {"total": state["batches"]["done"], "kept": state["kept"]}

        def load_state_dict(self, state):
            assert torch.equal(state["kept"], torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
            self.batches = {"done": state["total"]}

    counts = Later()
    fit(golden[0], counts, "auto")
    assert counts.batches == {"done": 24}


def main(target):
    """Make a golden checkpoint, and write down its name."""
    os.makedirs(target)
    os.chdir(target)
    counts = Counts()
    counts.last = LAST
    with contextlib.suppress(ZeroDivisionError):
        fit("checkpoints", counts)
    (name,) = LocalFolder("checkpoints").names()
    Path("expected.json").write_text(json.dumps({"name": name}, indent=1) + "\n")
    shutil.rmtree("runs")
    os.remove("checkpoints/.lock")


if __name__ == "__main__":
    main(sys.argv[1])
