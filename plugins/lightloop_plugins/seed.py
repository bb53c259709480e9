"""Make a run repeatable: seed every generator, in the workers of DataLoaders too."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lightloop import Loop, Plugin, hookimpl, option, seed_everything
from lightloop.toolkit import remade


class Seed(Plugin):
    """Seed Python, numpy and torch when a run begins, with the same number on every rank.

    In the workers of a DataLoader, whatever is random about an item is drawn from generators that are seeded by the seed,
    the epoch and the item's index (the batch's indices, for a dataset that reads several at once); so it is new in each
    epoch, and the same however many workers there are, whether or not they persist, and wherever a run is resumed. An
    iterable dataset's worker is seeded once an epoch, by its number and the rank.
    """

    name = "seed"
    before = ("accelerator", "strategy", "run_dir")
    after = ("limits", "overfit")
    disturbs = ("random",)
    transient = ("_epoch",)

    seed: int | None = option(
        None, "Seed of all random number generators, from 0 to 2**32 - 1; None does not seed.", flag="seed"
    )

    def validate(self) -> None:
        if self.seed is None or not 0 <= self.seed < 2**32:
            raise self.invalid("seed", "a whole number from 0 to 2**32 - 1")
        self._epoch: Tensor | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        assert self.seed is not None
        seed_everything(self.seed)
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # workers that persist read it

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop) -> Generator[None, Any, Any]:
        loader = yield
        if not isinstance(loader, DataLoader) or not loader.num_workers:
            return loader
        assert self.seed is not None
        assert self._epoch is not None
        return remade(loader, worker_init_fn=SeedWorker(self.seed, loop.world.rank, self._epoch, loader.worker_init_fn))

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        assert self._epoch is not None
        self._epoch.fill_(loop.epoch)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._epoch = None


class SeedWorker:
    """What a worker calls when it starts: from then on its copy of the dataset seeds itself."""

    repeats = True
    """That workers draw the same for the same item, for those who resume a loader."""

    def __init__(self, seed: int, rank: int, epoch: Tensor, users: Callable[[int], None] | None) -> None:
        self.seed, self.rank, self.epoch, self.users = seed, rank, epoch, users

    def __call__(self, worker: int) -> None:
        """Seed the worker ``worker``."""
        self.by("worker", self.rank, worker)
        if self.users is not None:
            self.users(worker)
        info = get_worker_info()
        assert info is not None
        kind = type(info.dataset)
        if isinstance(info.dataset, IterableDataset):
            seeded = {"__iter__": self.seeding(kind.__iter__, self.rank, worker)}  # type: ignore[attr-defined]
        else:
            names = [name for name in ("__getitem__", "__getitems__") if hasattr(kind, name)]
            seeded = {name: self.seeding(getattr(kind, name)) for name in names}
        with contextlib.suppress(TypeError):  # a list or another built-in: its items have nothing random about them
            info.dataset.__class__ = type(kind.__name__, (kind,), seeded)

    def seeding(self, method: Callable[..., Any], *who: object) -> Callable[..., Any]:
        """``method`` of a dataset, which seeds by ``who`` and its arguments before it is called."""

        def call(dataset: Any, *arguments: Any) -> Any:
            self.by(method.__name__, *who, *arguments)
            return method(dataset, *arguments)

        return call

    def by(self, *what: object) -> None:
        """Seed the generators of this process by the epoch and ``what``."""
        text = repr((self.seed, int(self.epoch), *what))
        seed_everything(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big"))
