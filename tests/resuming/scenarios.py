"""Modules and data in which something happens that plugins are there for: at chosen batches, in the same way each time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightloop import Module
from lightloop.testing import classification_batches
from lightloop_plugins.resumable import ResumableLoader

BATCHES, EPOCHS = 4, 3
BAD = {1, 4, 5, 10}
"""After so many batches of the run, a loss of infinity comes; its gradient is finite."""
SCORES = [3.0, 2.0, 2.0, 2.5, 2.5, 1.0, 4.0]
"""What the validation passes find, one after another."""


class Net(Module):
    """Dropout, running statistics, momentum, a plateau, and metrics that come late, early, and once in a while."""

    bad = frozenset()
    optimizers_count = 1

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch, batch_idx, loop):
        loss = self.loss(batch)
        if loop.total_batches in self.bad:
            loss = loss + float("inf")
        if batch_idx == 0:
            self.log("early", SCORES[loop.epoch % len(SCORES)])
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.passes += not self.loop_of_sanity()
        self.log("val_loss", SCORES[int(self.passes) % len(SCORES)])

    def loop_of_sanity(self):
        return self.trainer.loop.evaluation.sanity

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        steps = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.9)
        return [optimizer], [
            {"scheduler": plateau, "monitor": "val_loss", "strict": False},
            {"scheduler": steps, "interval": "step", "frequency": 2},
        ]


class Infinite(Net):
    bad = frozenset(BAD)


class NanGradients(Net):
    """Some gradients are NaN."""

    def loss(self, batch):
        loss = super().loss(batch)
        return loss * float("nan") if self.training and self.trainer.loop.total_batches in BAD else loss


class Several(Net):
    """Two optimizers that share a parameter, each with a loss of its own, in turn."""

    frequencies = None

    def training_step(self, batch, batch_idx, loop, optimizer_idx):
        return super().training_step(batch, batch_idx, loop) * (1 + optimizer_idx)

    def configure_optimizers(self):
        first = torch.optim.SGD(self.net[0].parameters(), lr=0.05, momentum=0.9)
        rest = [*self.net[0].parameters(), *self.net[1].parameters(), *self.net[4].parameters()]
        every = self.frequencies or (None, None)
        return [
            {"optimizer": optimizer, **({"frequency": count} if count else {})}
            for optimizer, count in zip((first, torch.optim.Adam(rest, lr=0.02)), every, strict=True)
        ]


class InTurn(Several):
    frequencies = (1, 2)

    def training_step(self, batch, batch_idx, loop, optimizer_idx):
        return Net.training_step(self, batch, batch_idx, loop)


class ByHand(Net):
    automatic_optimization = False

    def training_step(self, batch, batch_idx, loop, manual):
        loss = super().training_step(batch, batch_idx, loop)
        manual.backward(loss)
        if manual.should_step():
            manual.step()


class Sequences(Net):
    """Recurrent: batches of shape (n, time, 4), cut into pieces by tbptt."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def training_step(self, batch, batch_idx, loop, hiddens=None):
        x, y = batch
        out, hiddens = self.cell(x, hiddens)
        loss = nn.functional.cross_entropy(self.head(out).flatten(0, 1), y.flatten())
        self.log("loss", loss, on_epoch=True)
        return {"loss": loss, "hiddens": hiddens}


class LBFGS(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Outputs(Net):
    """Uses what the steps of an epoch have returned."""

    def training_step(self, batch, batch_idx, loop):
        loss = super().training_step(batch, batch_idx, loop)
        return {"loss": loss, "log": {"twice": 2 * loss.detach()}}

    def training_epoch_end(self, outputs):
        return {"log": {"outputs": len(outputs), "total": sum(float(each["loss"]) for each in outputs)}}


MODULES = {
    each.__name__: each for each in (Net, Infinite, NanGradients, Several, InTurn, ByHand, Sequences, LBFGS, Outputs)
}


def batches(count=BATCHES, seed=0):
    return classification_batches(count, seed=seed)


def tensors():
    x, y = zip(*batches(), strict=True)
    return TensorDataset(torch.cat(x), torch.cat(y))


class Stream(IterableDataset):
    """Without a length."""

    def __iter__(self):
        return iter(batches())


LOADERS = {
    "list": batches,
    "shuffled": lambda: DataLoader(tensors(), batch_size=8, shuffle=True),
    "stream": lambda: DataLoader(Stream(), batch_size=None),
    "resumable": lambda: ResumableLoader(tensors(), batch_size=8, shuffle=True, seed=3),
    "sequences": lambda: [(x.reshape(2, 4, 4), y.reshape(2, 4)) for x, y in batches()],
}
