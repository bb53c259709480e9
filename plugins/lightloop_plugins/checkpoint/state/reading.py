"""How an epoch is read: by which loader, in which way it can be gone on with, and what its reads draw."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightloop.toolkit import Around, Limited, size_of
from lightloop_plugins.checkpoint.state.draws import Draws, Reads, Repeatable
from lightloop_plugins.checkpoint.state.loader_parts import begin, generators_in, persistent_in
from lightloop_plugins.checkpoint.state.random_state import take_all, take_global
from lightloop_plugins.checkpoint.state.streams import Stream, global_streams, streams_of

_AT_ONCE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Samplers that draw from global random numbers when an epoch begins, and never later."""


class Reading(Around):
    """One epoch of ``loader``: what decides its order, and what its reads have drawn; read in place of the loader."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.inner = inner = innermost(loader)
        self.kind = kind_of(loader)
        self.by_index = isinstance(inner, DataLoader) and not isinstance(inner.dataset, IterableDataset)
        self.start: Mapping[str, Any] | None = None if self.kind == "itself" else epoch_start(loader)
        self.watched = self._is_watched()
        self.draws = Draws(self._streams() if self.watched else {})

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """From the beginning, with an eye on what is drawn, where that has to be."""
        if not self.watched:
            return iter(self.loader)
        return self.begin_by_index(0) if self.by_index else Reads(iter(self.loader), self.draws)

    def begin_by_index(self, skip: int) -> Iterator[Any]:
        """From the batch ``skip`` on; the sampler has passed over those before it, and no item of them is read."""
        indices = Repeatable(self.inner._index_sampler, self.draws, skip)
        batches = begin(self.inner, indices)
        indices.latest.catch_up()
        return self.limited(batches, skip)

    def limited(self, batches: Iterator[Any], skip: int) -> Iterator[Any]:
        """``batches`` of the innermost loader from ``skip`` on, as many as are read of the one around it."""
        end = end_of(self.loader)
        return batches if end is None or self.loader is self.inner else itertools.islice(batches, end - skip)

    def repeat(self, skip: int) -> tuple[list[Any], Iterator[Any]]:
        """Read the first ``skip`` batches once more: what was read ahead of them, and the rest."""
        source = iter(self.loader)
        deque(self.draws.repeated(source, skip), maxlen=0)
        ahead = list(self.draws.repeated(source, self.draws.known))
        return ahead, Reads(source, self.draws)

    def _is_watched(self) -> bool:
        """Whether its reads may draw in the midst of the epoch, in this process."""
        if self.kind != "replay" or type(self.inner) in (list, tuple):
            return False
        return not (self.by_index and draws_at_once(self.inner.batch_sampler or self.inner.sampler))

    def _streams(self) -> dict[str, Stream]:
        if not self.by_index and isinstance(self.inner, DataLoader) and self.inner.num_workers:
            return {}  # it is in the workers that its dataset draws
        return {**global_streams(), **streams_of(generators_in(self.inner))}


def innermost(loader: Any) -> Any:
    """The loader whose batches the wrappers around it pass on."""
    while isinstance(loader, Limited) or getattr(type(loader), "passes_on", False):
        loader = loader.loader
    return loader


def epoch_start(loader: Any) -> dict[str, Any]:
    """What decides the order of an epoch that is about to be read."""
    return {"global": take_global(), **own_state(innermost(loader))}


def kind_of(loader: Any) -> str:
    """How ``loader`` gets to a place: by "itself", by its "state", or by "replay" of the epoch."""
    inner = innermost(loader)
    if hasattr(inner, "iter_from"):
        return "itself"
    both = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
    return "state" if both and not is_ahead(loader) else "replay"


def is_ahead(loader: Any) -> bool:
    """Whether the loop has read a batch more than it has trained on."""
    return end_of(loader) is None and getattr(loader, "reads_ahead", False)


def end_of(loader: Any) -> int | None:
    """How many batches are read of it at most, where that is known."""
    size: int | None = size_of(loader)
    return getattr(loader, "most", None) if size is None else size


def draws_at_once(sampler: Any) -> bool:
    """Whether ``sampler`` draws all that it needs of global random numbers when an epoch begins."""
    if type(sampler) is BatchSampler:
        return draws_at_once(sampler.sampler)
    return type(sampler) in (*_AT_ONCE, list, tuple, range) or getattr(sampler, "draws_at_once", False) is True


def own_state(loader: Any) -> dict[str, Any]:
    """What ``loader`` has of its own on which its next epoch depends."""
    return {"generators": take_all(generators_in(loader)), "persistent": persistent_in(loader)}
