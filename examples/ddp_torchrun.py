"""Classify handwritten digits in two processes.

    python examples/ddp_torchrun.py                               starts the second process by itself
    torchrun --nproc-per-node 2 examples/ddp_torchrun.py          both are started by torchrun

Either way each process reads its half of every epoch, gradients are the mean over both, and both end with the same
weights. On a machine with two GPUs, accelerator="gpu" is all there is to add.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Module, Trainer


class Classifier(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch):
        right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--devices", type=int, default=2)
    arguments = parser.parse_args()

    X, y = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(y))
    train, val = torch.utils.data.random_split(digits, [1500, 297], torch.Generator().manual_seed(0))

    trainer = Trainer(strategy="ddp", devices=arguments.devices, max_epochs=arguments.epochs, seed=0)
    module = Classifier()
    # 32 is what one process reads; a step is made of 64 samples.
    result = trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=100))

    sum_of_weights = sum(parameter.sum() for parameter in module.parameters()).item()
    print(
        f"rank {trainer.global_rank} of {trainer.world_size}: {result.global_step} steps, "
        f"accuracy {result.metrics['accuracy']:.3f}, weights {sum_of_weights:.6f}"
    )


if __name__ == "__main__":
    main()
