"""Train and validate on the same few batches repeatedly, to check that a model can learn at all."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from fractions import Fraction
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import Limited, remade, size_of


class Overfit(Plugin):
    """Use the first ``batches`` of the training and of the validation data, each of its own and in the same order.

    A shuffled DataLoader is read in sequence. Where that cannot be arranged, because of a sampler of the user's or data
    without indices, the batches are kept when they are first read. Limits apply to what is left, and 0 still means none;
    test and prediction data are as ever.
    """

    name = "overfit"
    tags = ("shortens",)
    before = ("accelerator", "strategy")
    disturbs = ("gradients", "parameters")

    batches: int | float = option(
        0.0,
        "Use only this number (int) or fraction (float) of the training and validation batches; 0 is off.",
        flag="overfit_batches",
        aliases=("overfit_pct",),
    )

    def validate(self) -> None:
        if not self.batches > 0 or (isinstance(self.batches, float) and self.batches > 1):
            raise self.invalid("batches", "a whole number of batches above 0, or a fraction up to 1.0")

    @hookimpl(specname="prepare_loader")
    def read_in_sequence(self, loop: Loop, loader: Any) -> Iterable[Any] | None:
        if loop.stage != "fit" or not _is_plain(loader) or not isinstance(loader.sampler, RandomSampler):
            return None
        return remade(loader, sampler=SequentialSampler(loader.dataset))

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop, loader: Any) -> Generator[None, Any, Any]:
        prepared = yield
        if loop.stage != "fit":
            return prepared
        count = self._count(size_of(prepared))
        repeats = isinstance(loader, (list, tuple)) or (
            _is_plain(loader) and isinstance(loader.sampler, (RandomSampler, SequentialSampler))
        )
        return Limited(prepared if repeats else Kept(prepared, count), count)

    def _count(self, size: int | None) -> int:
        if isinstance(self.batches, int):
            return self.batches
        if size is None:
            raise self.invalid("batches", "a whole number of batches where the loader does not know its length")
        count = int(size * Fraction(self.batches).limit_denominator(10**6))
        if count == 0:
            raise self.invalid("batches", f"a fraction that does not round to 0 of {size} batches")
        return count


class Kept:
    """The first ``count`` batches of ``loader``, kept when they are first read."""

    def __init__(self, loader: Iterable[Any], count: int) -> None:
        self.loader = loader
        self.count = count
        self._batches: list[Any] | None = None

    def __len__(self) -> int:
        return min(len(self.loader), self.count)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self._batches is None:
            self._batches = list(Limited(self.loader, self.count))
        return iter(self._batches)


def _is_plain(loader: object) -> bool:
    """Whether it is a DataLoader that reads a dataset by index, in no batches but those that torch makes by itself."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and (loader.batch_size is not None or loader.batch_sampler is None)
    )
