"""A loader whose samples depend only on seed, epoch and index, so that it can start at any batch at once."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler


class ResumableLoader(DataLoader[Any]):
    """A DataLoader that resumes exactly at any batch, without reading those before it.

    The order of an epoch is a function of ``seed`` and the epoch; the random numbers that the dataset draws for a sample
    (of torch, numpy and Python) are seeded by ``seed``, epoch and index. So the batches are the same for any number of
    workers, persistent or not, and the main process's random numbers are not touched.

    Args:
        dataset: has ``__getitem__`` and ``__len__``.
        batch_size: samples per batch.
        shuffle: give each epoch an order of its own.
        seed: with the epoch, decides the order and the random numbers of each sample.
        drop_last: leave out a last batch that is not full.
        per_sample_seed: seed the random numbers; without it, a dataset that draws some is not resumed exactly.
        rank: which share of each epoch is read, where several processes share it.
        world_size: how many processes share it; the shares are of equal length, some samples being read twice.
        options: further arguments of ``torch.utils.data.DataLoader``.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        per_sample_seed: bool = True,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"ResumableLoader reads by index and needs a dataset with a length; {type(dataset).__name__} has none. Use a "
                "plain DataLoader, and give it state_dict and load_state_dict if it is not to be read again from its beginning"
            )
        for name in ("sampler", "batch_sampler", "generator"):
            if options.get(name) is not None:
                raise TypeError(f"ResumableLoader decides the order itself and takes no {name}; use a plain DataLoader")
        self.order = Order(len(dataset), batch_size, shuffle, seed, drop_last, rank, world_size)
        source: Dataset[Any] = Seeded(dataset, seed) if per_sample_seed else _Unseeded(dataset)
        private = torch.Generator().manual_seed(seed)  # the seeds of workers are not to be drawn from the global one
        super().__init__(source, batch_sampler=self.order, generator=private, **options)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is read next."""
        self.order.epoch = epoch

    def iter_from(self, skip: int) -> Iterator[Any]:
        """The batches of the epoch after the first ``skip``, which are not read."""
        self.order.start = skip
        try:
            return iter(self)
        finally:
            self.order.start = 0


class Order(Sampler[list[tuple[int, int]]]):
    """Batches of ``(epoch, index)``: the epoch goes along, so that workers which live through epochs know of it."""

    def __init__(
        self, size: int, batch_size: int, shuffle: bool, seed: int, drop_last: bool, rank: int, world_size: int
    ) -> None:
        if batch_size < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"batch_size must be from 1 and rank below world_size; they are {batch_size}, {rank}, {world_size}"
            )
        self.size, self.batch_size, self.shuffle, self.seed = size, batch_size, shuffle, seed
        self.drop_last, self.rank, self.world_size = drop_last, rank, world_size
        self.epoch = self.start = 0

    def __len__(self) -> int:
        share = -(-self.size // self.world_size)
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self._batches(
            self.epoch, self.start
        )  # as they are now: what is fetched ahead must not see the next epoch

    def _batches(self, epoch: int, start: int) -> Iterator[list[tuple[int, int]]]:
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        indices = torch.randperm(self.size, generator=generator) if self.shuffle else torch.arange(self.size)
        if missing := -self.size % self.world_size:
            indices = torch.cat([indices, indices.repeat(-(-missing // self.size))[:missing]])
        indices = indices[self.rank :: self.world_size]
        for batch in range(start, len(self)):
            chosen = indices[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield [(epoch, index) for index in chosen.tolist()]


class Seeded(Dataset[Any]):
    """``dataset``, each sample of which draws random numbers that belong to it; the caller's are as before."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: tuple[int, int] | int) -> Any:
        epoch, index = key if isinstance(key, tuple) else (0, key)  # a plain index where others put their own sampler
        numpy = sys.modules.get("numpy")
        before = random.getstate(), torch.default_generator.get_state(), numpy.random.get_state() if numpy else None
        seed = mix(self.seed, epoch, index)
        random.seed(seed)
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which visits the accelerators as well
        if numpy:
            numpy.random.seed(seed % 2**32)
        try:
            return self.dataset[index]
        finally:
            random.setstate(before[0])
            torch.default_generator.set_state(before[1])
            if numpy:
                numpy.random.set_state(before[2])


class _Unseeded(Dataset[Any]):
    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: tuple[int, int] | int) -> Any:
        return self.dataset[key[1] if isinstance(key, tuple) else key]


def mix(*numbers: int) -> int:
    """One number of 63 bits that depends on all of ``numbers`` and their order (SplitMix64, Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + (number % 2**64) + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1
