"""Train a generative adversarial network on scikit-learn's handwritten digits: two optimizers in one loop.

    python examples/gan_digits.py [--epochs 60] [--dir runs/gan_digits]

Real data, no download: 1,797 images of 8 x 8 pixels. While the discriminator learns, the generator's parameters require
no gradient, and the other way round. It ends with how near the generated images are to real ones, how many of the ten
digits are among them, and a few of them drawn in characters.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightloop import Module, Trainer


class GAN(Module):
    def __init__(self, noise=16, width=128, lr=1e-3):
        super().__init__()
        self.noise, self.lr = noise, lr
        self.generator = nn.Sequential(
            nn.Linear(noise, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, 64), nn.Sigmoid(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Dropout(0.3),
            nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Dropout(0.3),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, count):
        return self.generator(torch.randn(count, self.noise, device=self.device))

    def training_step(self, batch, batch_idx, optimizer_idx):
        generated = self(len(batch))
        if optimizer_idx == 0:
            real = F.softplus(-self.discriminator(batch))
            loss = (real + F.softplus(self.discriminator(generated))).mean()
            self.log("discriminator_loss", loss, prog_bar=True)
        else:
            loss = F.softplus(-self.discriminator(generated)).mean()
            self.log("generator_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.discriminator.parameters(), lr=self.lr, betas=(0.5, 0.99)),
            torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.5, 0.99)),
        ]

    @torch.no_grad()
    def sample(self, count):
        training = self.training
        images = self.eval()(count)
        self.train(training)
        return images


def load():
    """Images of shape ``(1797, 64)`` from 0 to 1, and the digits that they show."""
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def judge(images, real, labels):
    """The mean distance from each image to the nearest real one, and how many digits those show."""
    nearest = torch.cdist(images, real).min(1)
    return nearest.values.mean().item(), labels[nearest.indices].unique().numel()


def draw(images):
    """Images side by side, two characters a pixel."""
    shades = " .:-=+*#%@"
    for row in range(8):
        pixels = [image.view(8, 8)[row] * 9.99 for image in images]
        print("   ".join("".join(shades[int(pixel)] * 2 for pixel in line) for line in pixels))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--dir", default="runs/gan_digits", help="where metrics go")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    real, labels = load()
    module = GAN()
    before = judge(module.sample(200), real, labels)
    trainer = Trainer(max_epochs=arguments.epochs, log_every_n_steps=20, default_root_dir=arguments.dir)
    result = trainer.fit(module, DataLoader(real, batch_size=64, shuffle=True, drop_last=True))
    images = module.sample(200)

    print(f"\n{'':18}{'distance to a real image':>26}{'digits':>9}")
    for name, (distance, digits) in (("before training", before), ("after training", judge(images, real, labels))):
        print(f"{name:18}{distance:>26.3f}{digits:>9}")
    discriminator, generator = trainer.loop.optimizer_steps
    print(f"\n{result.global_step} steps: {discriminator} of the discriminator, {generator} of the generator\n")
    draw(images[:4])


if __name__ == "__main__":
    main()
