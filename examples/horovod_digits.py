"""Train on scikit-learn's handwritten digits in several processes, with Horovod.

    horovodrun -np 2 python examples/horovod_digits.py [--epochs 5]

Without horovodrun it is one process. Each reads its own part of the data; gradients are averaged, and so are the results.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightloop import Module, Trainer


class Digits(Module):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch):
        images, labels = batch
        logits = self.net(images)
        self.log("val_loss", F.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def load(batch_size=32):
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, val = random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size, shuffle=True), DataLoader(val, batch_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    trainer = Trainer(strategy="horovod", max_epochs=arguments.epochs, seed=0, gradient_clip_val=1.0)
    result = trainer.fit(Digits(), *load())
    if trainer.loop.world.is_main:
        metrics = {name: round(value, 4) for name, value in result.metrics.items() if name.startswith("val")}
        print(f"{trainer.loop.world.size} processes, {result.global_step} steps each: {metrics}")


if __name__ == "__main__":
    main()
