"""The base class for users' models: a torch module that can log and has access to the loop that trains it."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch import nn

from lightloop.host.discovery import discover
from lightloop.host.found import PluginError, hint
from lightloop.inputs.hyperparameters import Hyperparameters, callers, copied, entries_of, given_to, saves
from lightloop.loop import Loop
from lightloop.metrics import Number

LOG_OPTIONS = {"on_step", "on_epoch", "prog_bar", "reduce", "weight", "copy"}
"""The options of ``log``."""


class Usual:
    """A default attribute of a module, which a module's own attribute of the same name overrides."""

    def __init__(self, get: Callable[[Module], Any], doc: str) -> None:
        self._get, self.__doc__ = get, doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: Module | None, owner: type) -> Any:
        if module is None:
            return self
        for kind in ("_parameters", "_buffers", "_modules"):  # where torch keeps what an author has set
            if self._name in (parts := vars(module).get(kind, {})):
                return parts[self._name]
        return self._get(module)


class Module(nn.Module):
    """A model with its training step. Any ``nn.Module`` with the same methods works too; this one can log.

    Define ``training_step(batch, batch_idx)`` and ``configure_optimizers()``; further, as needed,
    ``validation_step``, ``test_step``, ``predict_step`` and ``train_dataloader``, ``val_dataloader``,
    ``test_dataloader``, ``predict_dataloader``. A step takes the batch and, by name, any of ``batch_idx``,
    ``optimizer_idx``, ``dataloader_idx``, ``epoch``, ``global_step``, ``loop`` and those of plugins. If you use other
    names, arguments come by position: ``training_step(batch, batch_idx, optimizer_idx)``, the last one if there are
    several optimizers, ``validation_step(batch, batch_idx, dataloader_idx)``. See :func:`lightloop.toolkit.bind`.
    """

    _loop: Loop | None = None

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Create a module and record its constructor's arguments before the constructor can change them."""
        new = super().__new__
        made = new(cls) if new is object.__new__ else new(cls, *arguments, **keywords)
        if saves(cls):
            vars(made)["_given"] = given_to(cls.__init__, made, *arguments, **keywords)
        return made

    @property
    def loop(self) -> Loop:
        """The loop of the current run.

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
        """The Trainer of the current run."""
        return self.loop.trainer

    def log(self, name: str, value: Number, **how: Any) -> None:
        """Log a metric; see :meth:`lightloop.Loop.log` for the options.

        Lightning's ``batch_size`` is ``weight``, its ``reduce_fx`` is ``reduce``; with ``sync_dist`` a value of a step is
        the mean over the ranks, as that of an epoch always is.
        """
        loop = self._loop or self.loop
        if not how.keys() <= LOG_OPTIONS:
            value, how = familiar(loop, value, how)
        loop.log(name, value, **how)

    def log_dict(self, metrics: Mapping[str, Number], **how: Any) -> None:
        """Log several metrics with the same options."""
        for name, value in metrics.items():
            self.loop.log(name, value, **how)

    @property
    def device(self) -> torch.device:
        """The device of the parameters; the CPU if there are none."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    dtype = Usual(
        lambda module: next((parameter.dtype for parameter in module.parameters()), torch.get_default_dtype()),
        "The dtype of the parameters; torch's default dtype if there are none.",
    )
    global_rank = Usual(
        lambda module: module._loop.world.rank if module._loop else 0, "The rank of this process; 0 outside a run."
    )
    local_rank = Usual(
        lambda module: module._loop.world.local_rank if module._loop else 0,
        "The rank of this process on its machine; 0 outside a run.",
    )
    logger = Usual(lambda module: module.trainer.logger if module._loop else None, "The run's logger, or None.")

    def print(self, *values: Any, **how: Any) -> None:
        """Print on the main rank only."""
        if self.global_rank == 0:
            print(*values, **how)

    @property
    def current_epoch(self) -> int:
        """The current epoch, counted from 0; 0 outside a run."""
        return self._loop.epoch if self._loop else 0

    @property
    def global_step(self) -> int:
        """The number of applied optimizer steps; 0 outside a run."""
        return self._loop.global_step if self._loop else 0

    def freeze(self) -> None:
        """Freeze all parameters: no gradients, eval mode."""
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self) -> None:
        """Make all parameters trainable again: gradients, train mode."""
        self.requires_grad_(True)
        self.train()

    def save_hyperparameters(self, *names: Any, ignore: Iterable[str] = ()) -> None:
        """Store the constructor's arguments in ``self.hparams``, from where checkpoints and loggers take them.

        They are stored as passed, even if the constructor has changed them since: lists and mappings are
        copied. If a base class calls this in its constructor, the subclass's arguments are stored too, and come first.

        Args:
            names: the arguments to store; all by default. Or one mapping, namespace or dataclass to store.
            ignore: the arguments not to store.

        Raises:
            ValueError: if the constructor has no such argument.
            TypeError: if ``names`` are neither strings nor one such object.
        """
        frame = inspect.currentframe()
        outer = list(callers(frame.f_back if frame is not None else None, self))
        given = {name: value for _, found in outer for name, value in found.items()}
        skipped = {ignore} if isinstance(ignore, str) else set(ignore)
        before: Any = getattr(self, "hparams", {})
        sources = dict(getattr(before, "sources", {}))
        if all(isinstance(name, str) for name in names):
            if any(name == "__init__" for name, _ in outer):
                given |= vars(self).get("_given", {})
            if unknown := [name for name in names if name not in given]:
                raise ValueError(f"{type(self).__name__} has no argument {unknown[0]!r}; it has {', '.join(given)}")
            kept = {name: given[name] for name in names or given if name not in skipped}
        else:
            kept = {name: value for name, value in self._entries(names).items() if name not in skipped}
            kind = "namespace" if isinstance(names[0], argparse.Namespace) else "mapping"
            sources |= {name: (kind, list(kept)) for name, value in given.items() if value is names[0]}
        self.hparams = Hyperparameters({**before, **{name: copied(value) for name, value in kept.items()}})
        self.hparams.sources = sources

    def _entries(self, given: tuple[Any, ...]) -> dict[str, Any]:
        found = entries_of(given[0]) if len(given) == 1 else None
        if found is None:
            raise TypeError(
                f"save_hyperparameters of {type(self).__name__} takes names of arguments, or one mapping, namespace or "
                f"dataclass, and was given {', '.join(type(each).__name__ for each in given)}"
            )
        return found

    @classmethod
    def load_from_checkpoint(cls, path: str | os.PathLike[str], strict: bool = True, **arguments: Any) -> Self:
        """Return a new module with the weights of a checkpoint and the hyperparameters saved with them.

        Args:
            path: a checkpoint, or a folder of checkpoints, of which the newest is loaded.
            strict: whether weights that are missing or unexpected are an error.
            arguments: constructor arguments that override the saved ones.

        Raises:
            PluginError: if no installed plugin reads checkpoints.
            Exception: what that plugin raises if the checkpoint is damaged, or is of another module.
        """
        for found in discover().values():
            if (load := getattr(found.plugin, "load_module", None)) is not None:
                return load(cls, path, strict=strict, **arguments)  # type: ignore[no-any-return]
        raise PluginError(f"{cls.__name__}.load_from_checkpoint: no installed plugin reads checkpoints")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_loop", "_given")}


def familiar(loop: Loop, value: Any, how: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A logged value and its options, of which some have the names that Lightning gives them, as Lightloop has them.

    Raises:
        TypeError: for an option that means nothing here.
    """
    how = dict(how)
    if how.pop("rank_zero_only", False) and loop.world.size > 1:
        raise TypeError("log: metrics are the mean over all ranks; leave out rank_zero_only, and log on all of them")
    if how.pop("sync_dist", False) and loop.evaluation is None and not how.get("on_epoch") and loop.world.size > 1:
        value = loop.world.reduce(torch.as_tensor(value, device=loop.device), "mean")
    if (size := how.pop("batch_size", None)) is not None:
        how["weight"] = size
    if (reduce := how.pop("reduce_fx", None)) is not None:
        how["reduce"] = reduce if isinstance(reduce, str) else getattr(reduce, "__name__", repr(reduce))
    usual = {"logger": True, "add_dataloader_idx": True, "enable_graph": False}
    for name in how.keys() - LOG_OPTIONS:
        if (given := how.pop(name)) is not None and given != usual.get(name):
            raise TypeError(f"log has no option {name}={given!r}.{hint(f'log.{name}', discover().values())}")
    return value, how
