"""Tell samplers and datasets the current epoch, so that each epoch is shuffled differently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler

from lightloop import Evaluation, Loop, Plugin, hookimpl


class SetEpoch(Plugin):
    """Call ``set_epoch(epoch)`` of a loader, and of every sampler, batch sampler and dataset in it, however wrapped.

    Each is told of an epoch once, before it is read; what has no such method is left alone.
    """

    name = "set_epoch"
    default = True
    transient = ("_epoch", "_told")

    def validate(self) -> None:
        self._epoch = 0
        self._told: dict[int, Any] = {}

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self.validate()

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        if loop.epoch != self._epoch:
            self._epoch, self._told = loop.epoch, {}
        self._tell([loop.train_loader], loop.epoch)

    @hookimpl
    def before_evaluation(self, loop: Loop, evaluation: Evaluation) -> None:
        self._tell(evaluation.loaders.values(), loop.epoch)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._told = {}

    def _tell(self, loaders: Iterable[Any], epoch: int) -> None:
        for part in parts_of(loaders):
            if callable(getattr(type(part), "set_epoch", None)) and id(part) not in self._told:
                self._told[id(part)] = part  # held on to: another one must not have its id
                part.set_epoch(epoch)


def parts_of(loaders: Iterable[Any]) -> Iterator[Any]:
    """Everything in ``loaders`` that may know of epochs, each once: they themselves, samplers, datasets, wrappers."""
    seen: set[int] = set()
    waiting = list(loaders)
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for value in getattr(part, "__dict__", {}).values():
            held = (
                value.values()
                if isinstance(value, Mapping)
                else value
                if isinstance(value, (list, tuple))
                else (value,)
            )
            if all(map(_may_know, held)):
                waiting += held


def _may_know(value: object) -> bool:
    kinds = (DataLoader, Dataset, Sampler)
    return isinstance(value, kinds) or hasattr(type(value), "set_epoch") or _reads_another(value)


def _reads_another(value: object) -> bool:
    """Whether it is a wrapper: an object of the user's that can be iterated over and has another one in it."""
    wraps = hasattr(type(value), "__iter__") and hasattr(value, "__dict__")
    return wraps and any(
        hasattr(type(inner), "__iter__") and hasattr(inner, "__dict__") for inner in vars(value).values()
    )
