"""Watch a training run by a callback of one's own, and end it when it is good enough.

    python examples/callback.py [--target 0.97] [--epochs 30]

The data is scikit-learn's handwritten digits: real, and already on the disk. The callback counts what the run does,
prints a line per epoch, and asks for the end as soon as the accuracy on held-out digits reaches the target.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightloop import Callback, Module, Trainer


class Digits(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)

    def on_train_start(self):  # the same events are told to the module, without trainer and module
        print(f"{sum(parameter.numel() for parameter in self.parameters()):,} parameters")


class UntilGoodEnough(Callback):
    def __init__(self, target):
        self.target, self.samples = target, 0

    def on_train_epoch_start(self, trainer, module):
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.samples += len(batch[0])

    def on_validation_end(self, trainer, module):
        if trainer.sanity_checking:
            return
        accuracy = trainer.callback_metrics["accuracy"]
        seconds = time.perf_counter() - self.began
        print(
            f"epoch {trainer.current_epoch + 1:2}: accuracy {accuracy:.2%} after {self.samples:,} digits, {seconds:.2f} s"
        )
        if accuracy >= self.target:
            trainer.should_stop = True

    def state_dict(self):  # kept in checkpoints, so that a resumed run goes on counting
        return {"samples": self.samples}

    def load_state_dict(self, state):
        self.samples = state["samples"]


def load(batch_size=32):
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, held_out = random_split(data, [1437, 360], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size, shuffle=True), DataLoader(held_out, batch_size)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=0.97, help="the accuracy that is good enough")
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args(arguments)

    trainer = Trainer(
        callbacks=[UntilGoodEnough(arguments.target)],
        max_epochs=arguments.epochs,
        seed=0,
        enable_progress_bar=False,
        logger=False,
    )
    result = trainer.fit(Digits(), *load())
    print(f"{result.status} after {result.epoch} epochs and {result.global_step} steps")
    return result


if __name__ == "__main__":
    main()
