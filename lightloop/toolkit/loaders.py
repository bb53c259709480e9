"""Wrappers around users' loaders: shorter, or in another order."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Sampler

from lightloop.inputs.data import iter_from


class Around:
    """The base class of wrappers around ``loader``; attributes that they lack are the loader's."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


class Limited(Around):
    """The first ``limit`` batches of ``loader``, which is asked for no more; what else it has is the loader's own."""

    def __init__(self, loader: Iterable[Any], limit: int) -> None:
        super().__init__(loader)
        self.limit = limit

    def __len__(self) -> int:
        return min(len(self.loader), self.limit)

    @property
    def most(self) -> int:
        """How many batches there are at most, which is known where ``loader`` has no length."""
        return min(self.limit, getattr(self.loader, "most", self.limit))

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.loader), self.limit)

    def iter_from(self, skip: int) -> Iterator[Any]:
        """The batches after the first ``skip``."""
        return itertools.islice(iter_from(self.loader, skip), max(0, self.limit - skip))


def remade(loader: DataLoader[Any], sampler: Sampler[Any] | None = None, **changes: Any) -> DataLoader[Any]:
    """Return a DataLoader like ``loader``, of the same class, with another ``sampler`` and other changed attributes.

    The user's own is left as it is, which torch does not let anybody change.
    """
    twin = copy.copy(loader)
    if sampler is not None:
        batches = None if loader.batch_size is None else BatchSampler(sampler, loader.batch_size, loader.drop_last)
        changes |= {"sampler": sampler, "batch_sampler": batches}
    vars(twin).update(changes, _iterator=None)
    return twin
