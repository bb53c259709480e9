"""Runs that are to be killed; between them, they have every state that a run can have."""

import functools
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.checkpoint.rig import LOADERS, Net, worker_noise


class Traced(Net):
    """Writes each batch down as it is trained on, where a killed process leaves it."""

    file: str

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.write(batch[0], loss)
        return loss

    def write(self, data, loss):
        loop = self.trainer.loop
        where = [loop.epoch, loop.batch_idx, loop.piece_idx, loop.optimizer_idx]
        rates = [group["lr"] for optimizer in loop.optimizers for group in optimizer.param_groups]
        with open(self.file, "a") as stream:
            stream.write(json.dumps([where, [data.tolist(), loss.item(), rates]]) + "\n")


class Recurrent(Traced):
    """Reads sequences piece by piece."""

    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(3, 4, num_layers=2, dropout=0.4, batch_first=True)
        self.out = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx, hiddens):
        x, y = batch
        out, hiddens = self.cells(x, hiddens)
        loss = nn.functional.mse_loss(self.out(out), y)
        self.log("loss", loss, on_epoch=True)
        self.write(x, loss)
        return {"loss": loss, "hiddens": hiddens}

    def validation_step(self, batch, batch_idx):
        self.log("val", torch.rand(()))


def sequences():
    x = torch.sin(torch.arange(23 * 6 * 3.0).reshape(23, 6, 3))
    return DataLoader(TensorDataset(x, x.sum(2, keepdim=True)), 4, shuffle=True)


BATCHES = 42
"""How many each of these has in all."""
ALWAYS = {
    "epochs": 7,  # of six batches
    "val_check_interval": 4,  # in the middle of an epoch
    "log_every_n_steps": 1,
    "logger": ["csv", "tensorboard"],
    "ema_decay": 0.9,
}
STOPPING = {"early_stop_callback": True, "early_stopping_monitor": "val", "early_stopping_patience": 9}
SCALED = {"precision": "16-mixed", "precision_init_scale": 2.0**18, "precision_growth_interval": 3}
BOTH = {**ALWAYS, **STOPPING, **SCALED, "accumulate_grad_batches": 4, "gradient_clip_val": 1.0}

VICTIMS = {
    "workers that augment": (Traced, functools.partial(worker_noise, 2, persistent=True), BOTH),
    "two optimizers": (functools.partial(Traced, 2), LOADERS["plain"], BOTH),
    "truncated BPTT": (Recurrent, sequences, {**ALWAYS, **STOPPING, "truncated_bptt_steps": 2}),
    "saving on a thread": (Traced, LOADERS["own sampler generator"], {**BOTH, "async_save": True}),
}
"""By name: the module, the training data, and options."""
