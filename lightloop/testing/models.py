"""Tiny models and data whose right results are known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightloop import Module


class Probe(Module):
    """One scalar weight ``w = 0`` under SGD with learning rate 1 and loss ``x * w``: the gradient of a batch is its x.

    After training, ``w`` is minus the sum of the steps' gradients, which tells which batches were in which step.
    """

    def __init__(self, **optimizer: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.seen: list[float] = []
        """The batches that went forward."""
        self._optimizer = optimizer

    def training_step(self, batch: Tensor) -> Tensor:
        """The loss of a scalar batch."""
        self.seen.append(float(batch))
        return batch * self.w

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with learning rate 1."""
        return torch.optim.SGD(self.parameters(), **{"lr": 1.0, **self._optimizer})


def probe_batches(count: int = 10) -> list[Tensor]:
    """The batches 1, 2, … for a :class:`Probe`, as scalar tensors."""
    return [torch.tensor(float(number)) for number in range(1, count + 1)]


class TinyClassifier(Module):
    """A small multilayer perceptron; batches are ``(x, y)`` of shapes ``(n, 4)`` and ``(n,)``, three classes."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape ``(n, 3)``."""
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean cross-entropy, logged as ``loss``."""
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs ``val_loss``, mean cross-entropy."""
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def classification_batches(batches: int = 6, size: int = 8, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Batches for a :class:`TinyClassifier`: three Gaussian clouds in four dimensions, always the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 4, generator=generator) * 2
    labels = torch.randint(0, 3, (batches, size), generator=generator)
    points = centres[labels] + torch.randn(batches, size, 4, generator=generator)
    return list(zip(points, labels, strict=True))
