"""What users subclass: a torch module that can log and knows the loop that trains it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, Self

import torch
from torch import nn

from lightloop.host.discovery import discover
from lightloop.host.found import PluginError
from lightloop.loop import Loop
from lightloop.metrics import Number


class Hyperparameters(dict[str, Any]):
    """A mapping whose values are attributes too: ``module.hparams.lr``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no hyperparameter {name!r}; there are {', '.join(self)}") from None


class Module(nn.Module):
    """A model with its training step. Any ``nn.Module`` with the same methods serves as well; this one can log.

    Define ``training_step(batch, batch_idx)`` and ``configure_optimizers()``; further, as needed,
    ``validation_step``, ``test_step``, ``predict_step`` and ``train_dataloader``, ``val_dataloader``,
    ``test_dataloader``, ``predict_dataloader``. A step takes the batch and, by name, any of ``batch_idx``,
    ``optimizer_idx``, ``dataloader_idx``, ``epoch``, ``global_step``, ``loop`` and what plugins offer. Under names of your
    own, arguments come by position: ``training_step(batch, batch_idx, optimizer_idx)``, the last one where there are
    several optimizers, ``validation_step(batch, batch_idx, dataloader_idx)``. See :func:`lightloop.bind`.
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
        (self._loop or self.loop).log(name, value, **how)

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

    def save_hyperparameters(self, *names: str, ignore: Iterable[str] = ()) -> None:
        """Keep the arguments of the constructor in ``self.hparams``; checkpoints and loggers have them.

        Where a base class calls this in its constructor, those of the subclass's are kept as well, and first. Lists and
        mappings are kept as they are now.

        Args:
            names: which; all of them by default.
            ignore: which not.
        """
        given: dict[str, Any] = {}
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        while caller is not None and (found := _arguments(caller, self)) is not None:
            given |= found
            caller = caller.f_back
            if caller is not None and caller.f_code.co_name != "__init__":
                break
        if unknown := [name for name in names if name not in given]:
            raise ValueError(f"{type(self).__name__} has no argument {unknown[0]!r}; it has {', '.join(given)}")
        skipped = {ignore} if isinstance(ignore, str) else set(ignore)
        kept = {
            name: _copied(value) for name, value in given.items() if name in (names or given) and name not in skipped
        }
        self.hparams = Hyperparameters({**getattr(self, "hparams", {}), **kept})

    @classmethod
    def load_from_checkpoint(cls, path: str | os.PathLike[str], strict: bool = True, **arguments: Any) -> Self:
        """A new module with the weights of a checkpoint and the hyperparameters that were saved with them.

        Args:
            path: a checkpoint, or a folder of them, of which the newest is taken.
            strict: whether names of weights that only one side has are an error.
            arguments: of the constructor, in place of what was saved.

        Raises:
            PluginError: if no installed plugin reads checkpoints.
            Exception: what that plugin raises for one that is damaged, or of another module.
        """
        for found in discover().values():
            if (load := getattr(found.plugin, "load_module", None)) is not None:
                return load(cls, path, strict=strict, **arguments)  # type: ignore[no-any-return]
        raise PluginError(f"{cls.__name__}.load_from_checkpoint: no installed plugin reads checkpoints")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_loop"}


def _arguments(frame: FrameType, module: Module) -> dict[str, Any] | None:
    """What the function of ``frame`` was called with, by name, if it is a method of ``module``'s, such as its constructor."""
    taken = inspect.getargvalues(frame)
    if not taken.args or taken.locals.get(taken.args[0]) is not module:
        return None
    given = {name: taken.locals[name] for name in taken.args[1:] if name in taken.locals}
    return given | (taken.locals[taken.keywords] if taken.keywords else {})


def _copied(value: Any) -> Any:
    """Containers of their own; what is in them is shared."""
    if type(value) in (dict, Hyperparameters):
        return type(value)({key: _copied(part) for key, part in value.items()})
    return type(value)(map(_copied, value)) if type(value) in (list, tuple, set) else value
