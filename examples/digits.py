"""Train a small convolutional network on scikit-learn's handwritten digits, and show the result.

    python examples/digits.py [--epochs 15] [--dir runs/digits]

Real data, no download: 1,797 images of 8 x 8 pixels. It ends with a table of held-out results, the metrics of every
step in metrics.csv, and a picture of the curves in curves.png.
"""

import argparse
import csv
from pathlib import Path

import matplotlib
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightloop import Module, Trainer

matplotlib.use("Agg")  # a file, not a window
from matplotlib import pyplot as plt


class Digits(Module):
    def __init__(self, lr=2e-3, steps=1_000):
        super().__init__()
        self.lr, self.steps = lr, steps
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self._evaluate(batch, "val")

    def test_step(self, batch, batch_idx):
        self._evaluate(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr * 4, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _evaluate(self, batch, stage):
        images, labels = batch
        logits = self(images)
        self.log(f"{stage}_loss", F.cross_entropy(logits, labels))
        self.log(f"{stage}_accuracy", (logits.argmax(1) == labels).float().mean(), prog_bar=True)


def load(batch_size=32):
    """Loaders for training (1,257 images), validation (270) and test (270)."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    parts = random_split(data, [1257, 270, 270], torch.Generator().manual_seed(0))
    return [DataLoader(part, batch_size, shuffle=index == 0) for index, part in enumerate(parts)]


def plot(metrics, picture):
    """Draw what metrics.csv holds: the loss of each logged step, and the validation of each epoch."""
    with open(metrics, newline="") as file:
        rows = list(csv.DictReader(file))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
    for axes, names in ((left, ("train_loss", "val_loss")), (right, ("val_accuracy",))):
        for name in names:
            points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
            axes.plot(*zip(*points, strict=True), label=name, marker="." if name.startswith("val") else None)
        axes.set_xlabel("step")
        axes.legend()
        axes.grid(alpha=0.3)
    left.set_yscale("log")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--dir", default="runs/digits", help="where metrics and curves go")
    arguments = parser.parse_args()

    train, val, test = load()
    trainer = Trainer(
        max_epochs=arguments.epochs,
        seed=0,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        default_root_dir=arguments.dir,
    )
    module = Digits(steps=arguments.epochs * len(train))
    result = trainer.fit(module, train, val)
    directory = Path(trainer.run_dir)
    plot(directory / "metrics.csv", directory / "curves.png")

    test_metrics = trainer.test(module, test)
    print(f"\n{'':12}{'loss':>10}{'accuracy':>12}")
    for name, metrics in (("validation", result.metrics), ("test", test_metrics)):
        prefix = "val" if name == "validation" else "test"
        print(f"{name:12}{metrics[f'{prefix}_loss']:>10.4f}{metrics[f'{prefix}_accuracy']:>12.2%}")
    print(f"\n{result.global_step} steps in {result.epoch} epochs; metrics and curves are in {directory}")


if __name__ == "__main__":
    main()
