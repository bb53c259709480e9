"""Distribute data over ranks, so that together they read what a single process would."""

from __future__ import annotations

import math
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from lightloop import Loop, Plugin, World, hookimpl, option, seed_everything
from lightloop.toolkit import keep_random, remade, size_of, warn


class ShardData(Plugin):
    """Let each rank read its own part of every DataLoader whose samples have indices.

    Batch size means that of one rank. In training every rank has as many samples: where the numbers do not divide, some of
    the first are taken again, or some of the last left out if the loader drops a last batch that is not full. Evaluation
    reads each sample exactly once, and what ``predict`` returns on a rank is of its own part. A sampler of any kind is shared out, in the order that it gives, provided that it
    gives the same on all ranks; one that knows of ranks (it has ``num_replicas``) is left alone. What is not read by index,
    such as an iterable dataset or a list of batches, must itself give each rank what is the rank's own.
    """

    name = "shard_data"
    after = ("strategy", "limits", "overfit", "seed", "fast_dev_run")
    default = True
    state = ("_seed",)
    transient = ("_shares",)

    on: bool = option(
        True,
        "With several processes, let each read its own part of the data; set False if your samplers do this already.",
        flag="use_distributed_sampler",
        switch=True,
        aliases=("replace_sampler_ddp",),
    )

    def validate(self) -> None:
        self._seed = 0
        self._shares: list[Share] = []

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._shares = []
        if loop.world.size == 1:
            loop.opt_out(self)
        else:
            self._seed = loop.world.broadcast(torch.initial_seed() % 2**32)

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop, stage: str) -> Generator[None, Any, Any]:
        loader = yield
        together = stage != "fit" and loop.world.in_lockstep
        even = stage == "fit" or (together and not equally_many(loader, loop.world.size))
        mine = share(loader, loop.world, self._seed, even, stage == "fit")
        if mine is not loader:
            own = mine.sampler if isinstance(mine.sampler, Share) else mine.batch_sampler
            self._shares.append(own)
            if together and even and loop.world.is_main:
                whole = size_of(own.sampler) or 0
                warn(
                    f"{len(own) * loop.world.size - whole} of the {whole} samples to {stage} count twice, so that all ranks go "
                    "forward equally often; another batch size may do without",
                )
        return mine

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._shares = []

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seed = state["seed"]
        for one in self._shares:
            one.seed = self._seed


class Share(Sampler[Any]):
    """The part of ``sampler`` that one rank reads: every ``size``-th of what it gives, beginning with the rank's own.

    Each rank draws the whole order, from random numbers that are seeded alike on all ranks by ``seed`` and the epoch and
    put back afterwards, so that the order is of the kind that the user chose, and new in each epoch. Where the numbers
    do not divide, training takes some of the first ones again, or with ``drop`` leaves some of the last ones out;
    evaluation (``even=False``) takes each exactly once.

    Args:
        sampler: any sampler with a length: of samples, or of batches.
        world: the ranks.
        seed: the same on each rank.
        even: whether each rank must have as many as the others.
        drop: whether what does not divide is left out.
    """

    draws_at_once = True
    """That an epoch draws nothing from global random numbers after it has begun, for those who resume a loader."""

    def __init__(
        self, sampler: Iterable[Any], world: World, seed: int, *, even: bool = True, drop: bool = False
    ) -> None:
        self.sampler = sampler
        self.world = world
        self.seed, self.even, self.drop = seed, even, drop
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass have the order of ``epoch``."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole: int = len(self.sampler)  # type: ignore[arg-type]
        rank, size = self.world.rank, self.world.size
        if not self.even:
            return len(range(rank, whole, size))
        return whole // size if self.drop else math.ceil(whole / size)

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        rank, size = self.world.rank, self.world.size
        if self.even:
            whole = len(order)
            total = len(self) * size
            order = (order * math.ceil(total / max(1, whole)))[:total]
        yield from order[rank::size]

    def _order(self) -> list[Any]:
        put_back = keep_random()
        try:
            seed_everything((self.seed + self.epoch) % 2**32)
            order = list(self.sampler)
        finally:
            put_back()
        if not isinstance(self.sampler, SequentialSampler):
            seen = self.world.gather(zlib.crc32(repr(order).encode()))
            if len(set(seen)) > 1:
                raise ValueError(
                    f"{type(self.sampler).__name__} gives another order on each rank, so that it cannot be shared out: seed its "
                    "own generator alike on all ranks, or let it pick its rank's part itself and set "
                    "use_distributed_sampler=False"
                )
        return order

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "world": World()}


def equally_many(loader: Any, ranks: int) -> bool:
    """Whether each rank has as many batches as the others if every sample is read once."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return True
    size = 1 if loader.batch_size is None else loader.batch_size
    whole = size_of(loader.sampler if loader.batch_sampler is None or loader.batch_size else loader.batch_sampler) or 0
    return math.ceil(whole // ranks / size) == math.ceil(math.ceil(whole / ranks) / size)


def share(loader: Any, world: World, seed: int, even: bool = True, training: bool = True) -> Any:
    """What one rank reads of ``loader``: its part, where that is a DataLoader whose samples have indices.

    A sampler that knows of ranks already (one with ``num_replicas``) is left as it is. So is everything that is not read
    by index, iterable datasets among them: it must give each rank what is the rank's own.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    batches = loader.batch_size is None and loader.batch_sampler is not None
    sampler: Any = loader.batch_sampler if batches else loader.sampler
    inner = getattr(sampler, "sampler", None)
    if any(hasattr(each, "num_replicas") for each in (loader.batch_sampler, loader.sampler, sampler, inner)):
        return loader
    if size_of(sampler) is None:
        raise ValueError(
            f"{type(sampler).__name__} has no length, so that it cannot be shared out among {world.size} ranks: give it "
            "__len__, or let it pick its rank's part itself and set use_distributed_sampler=False"
        )
    mine = Share(sampler, world, seed, even=even, drop=training and (batches or loader.drop_last))
    return remade(loader, batch_sampler=mine) if batches else remade(loader, sampler=mine)
