"""What users subclass: a torch module that can log and knows the loop that trains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lightloop.loop import Loop
from lightloop.metrics import Number


class Module(nn.Module):
    """A model with its training step. Any ``nn.Module`` with the same methods serves as well; this one can log.

    Define ``training_step(batch, batch_idx)`` and ``configure_optimizers()``; further, as needed,
    ``validation_step``, ``test_step``, ``predict_step`` and ``train_dataloader``, ``val_dataloader``,
    ``test_dataloader``, ``predict_dataloader``. A step takes the batch and, by name, any of ``batch_idx``,
    ``optimizer_idx``, ``dataloader_idx``, ``epoch``, ``global_step``, ``loop`` and what plugins offer.
    """

    _loop: Loop | None = None

    @property
    def loop(self) -> Loop:
        """The run that this module is part of.

        Raises:
            RuntimeError: outside a run.
        """
        if self._loop is None:
            raise RuntimeError(
                f"{type(self).__name__} is not being trained or evaluated; loop and log work only in a run"
            )
        return self._loop

    @property
    def trainer(self) -> Any:
        """The Trainer of that run."""
        return self.loop.trainer

    def log(self, name: str, value: Number, **how: Any) -> None:
        """Log a metric; see :meth:`lightloop.Loop.log` for the options."""
        self.loop.log(name, value, **how)

    def log_dict(self, metrics: Mapping[str, Number], **how: Any) -> None:
        """Log several metrics with the same options."""
        for name, value in metrics.items():
            self.loop.log(name, value, **how)

    @property
    def device(self) -> torch.device:
        """Where the parameters are; the CPU where there are none."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    @property
    def current_epoch(self) -> int:
        """The epoch that is being trained, from 0; 0 outside a run."""
        return self._loop.epoch if self._loop else 0

    @property
    def global_step(self) -> int:
        """The steps that have been applied; 0 outside a run."""
        return self._loop.global_step if self._loop else 0

    def freeze(self) -> None:
        """Keep every parameter as it is: no gradients, eval mode."""
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self) -> None:
        """Let every parameter train again."""
        self.requires_grad_(True)
        self.train()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_loop"}
