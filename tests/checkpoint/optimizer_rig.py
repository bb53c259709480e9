"""A run with any optimizer, stopped and resumed, beside the same run that was not stopped."""

import contextlib
import warnings

import torch
from torch import nn

from lightloop import Module, Trainer
from tests.checkpoint.rig import CrashError, bits, scramble, stop

BATCHES = [(torch.sin(torch.arange(24.0) + 10 * n).reshape(4, 6), torch.cos(torch.arange(4.0) + n)) for n in range(6)]


class Net(Module):
    def __init__(self, make, width=8):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        self.make = make

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.body(x).squeeze(1), y)

    def configure_optimizers(self):
        return self.make(self)


def fit(directory, make, at=None, resume=None, net=Net, **options):
    scramble(0 if resume is None else 7)
    module = net(make)
    trainer = Trainer(
        ["-progress", "-model_summary", stop(at)],
        **{"checkpoint_dir": directory, "save_every": "1 batches", "max_epochs": 2, "resume": resume, **options},
    )
    with contextlib.suppress(CrashError), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        trainer.fit(module, BATCHES)
    return module, trainer


def assert_resumes(directory, make, at=(3, 8), **options):
    """Stopped before the batches ``at``, it ends with the weights and the states of the run that was not stopped."""
    whole, wanted = fit(directory / "whole", make, **options)
    resume = None
    for place in (*at, None):
        module, trainer = fit(directory / "parts", make, place, resume, **options)
        resume = "auto"
    assert bits(dict(module.state_dict())) == bits(dict(whole.state_dict()))
    states = [[bits(each.state_dict()) for each in loop.optimizers] for loop in (trainer.loop, wanted.loop)]
    assert states[0] == states[1]
