"""Train on scikit-learn's handwritten digits with PyTorch/XLA: on a TPU, or on the CPU as if it were several devices.

    python examples/xla_digits.py [--epochs 5]
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 python examples/xla_digits.py

All devices of the process share each batch. At the end it says how many programs XLA has compiled, which is to stay the
same however long one trains: every batch has the same shape.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightloop import Module, Trainer


class Digits(Module):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))

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
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def load(batch_size=32):
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, val = random_split(data, [1509, 288], torch.Generator().manual_seed(0))
    # A batch that is not full would be one more shape, and could not be divided among the devices.
    return DataLoader(train, batch_size, shuffle=True, drop_last=True), DataLoader(val, batch_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    trainer = Trainer(
        accelerator="xla",
        strategy="xla_spmd",
        max_epochs=arguments.epochs,
        seed=0,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
    )
    result = trainer.fit(Digits(), *load())

    import torch_xla.runtime as runtime

    programs = next(plugin.compilations for plugin in trainer.plugins if plugin.name == "xla")
    metrics = {name: round(value, 4) for name, value in result.metrics.items() if name.startswith("val")}
    print(
        f"{runtime.global_runtime_device_count()} devices, {result.global_step} steps, {programs} programs: {metrics}"
    )


if __name__ == "__main__":
    main()
