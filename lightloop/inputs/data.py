"""Read loaders: how many batches they give, which one is the last, and which of several is meant."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightloop.warning import warn

T = TypeVar("T")


def size_of(loader: Iterable[Any]) -> int | None:
    """Return the number of batches of ``loader``; None if it has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def with_is_last(
    batches: Iterable[T],
    skip: int = 0,
    limit: int | None = None,
    what: str = "the data",
    told: set[str] | None = None,
) -> Iterator[tuple[T, bool]]:
    """Yield each of ``batches`` after the first ``skip``, and whether it is known to be the last one.

    The end is ``limit`` batches, the length of ``batches`` or the ``most`` that it says it can give, whichever comes first.
    Where none is known, no batch is said to be the last, since nothing is read ahead of the batch that is given; only where
    ``batches.reads_ahead`` is true is one batch read ahead. Never more than ``limit`` are read. What is skipped is read and
    dropped, unless ``batches`` can begin later by itself: its ``iter_from(skip)`` is then read.

    A length that turns out to be wrong is warned of, with ``what`` the data is; once for all calls that share ``told``.
    """
    size = size_of(batches)
    bounds = [each for each in (size, getattr(batches, "most", None), limit) if each is not None]
    if bounds:
        return _up_to(min(bounds), batches, skip, limit, what, set() if told is None else told)
    return _one_ahead(batches, skip) if getattr(batches, "reads_ahead", False) else _as_they_come(batches, skip)


def _up_to(
    end: int, batches: Iterable[T], skip: int, limit: int | None, what: str, told: set[str]
) -> Iterator[tuple[T, bool]]:
    if skip >= end:
        return
    rest = itertools.islice(iter_from(batches, skip), None if limit is None else limit - skip)
    given = skip
    for given, batch in enumerate(itertools.islice(rest, end - skip), start=skip + 1):
        yield batch, given == end
    size = size_of(batches)
    if size is None or what in told:
        return
    if given < end:
        _say_length(
            batches, what, size, f"gave {given}: it ended there, and schedules and total_steps counted more", told
        )
    elif end == size and next(rest, told) is not told:
        _say_length(batches, what, size, f"has more: it ends after {size}, and the rest is not used", told)


def _as_they_come(batches: Iterable[T], skip: int) -> Iterator[tuple[T, bool]]:
    for batch in iter_from(batches, skip):
        yield batch, False


def _one_ahead(batches: Iterable[T], skip: int) -> Iterator[tuple[T, bool]]:
    rest = iter_from(batches, skip)
    for waiting in rest:
        for following in rest:
            yield waiting, False
            waiting = following
        yield waiting, True


def _say_length(batches: Any, what: str, size: int, found: str, told: set[str]) -> None:
    told.add(what)
    while not isinstance(batches, DataLoader) and "loader" in getattr(batches, "__dict__", {}):
        batches = batches.loader
    name = type(batches).__name__
    name += f" of {type(batches.dataset).__name__}" if isinstance(batches, DataLoader) else ""
    warn(
        f"{what} ({name}) says by len() that it has {size} batches, and {found}. Let its __len__ say how many it gives, or "
        "leave __len__ out: then all of them are read",
    )


def iter_from(batches: Iterable[T], skip: int) -> Iterator[T]:
    """The batches after the first ``skip``: read and dropped, unless ``batches`` has an ``iter_from`` of its own."""
    begin_at = getattr(batches, "iter_from", None) if skip else None
    return itertools.islice(iter(batches), skip, None) if begin_at is None else iter(begin_at(skip))


def as_loaders(data: Any) -> dict[str | None, Iterable[Any]]:
    """The loaders in ``data`` by name: one (named None), a mapping of loaders, or a list of them (named "0", "1" …)."""
    if data is None:
        return {}
    if isinstance(data, Mapping):
        return {str(name): part for name, part in data.items()}
    if isinstance(data, (list, tuple)) and data and all(_is_loader(part) for part in data):
        return {str(index): part for index, part in enumerate(data)} if len(data) > 1 else {None: data[0]}
    return {None: data}


def check_loader(loader: Any, what: str) -> None:
    """Refuse what cannot be read, or is known to give nothing, before anything is trained on."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise TypeError(
            f"{what} must be a DataLoader or any other iterable of batches; {type(loader).__name__} cannot be iterated over"
        )
    if isinstance(loader, (Tensor, str, bytes)):
        raise TypeError(f"{what} must give batches; wrap this {type(loader).__name__} in a list or a DataLoader")
    if isinstance(loader, Dataset) and not hasattr(loader, "__iter__"):
        raise TypeError(f"{what} must give batches; {type(loader).__name__} gives samples: wrap it in a DataLoader")
    if isinstance(loader, Mapping):
        raise TypeError(f"{what} must be one loader; this {type(loader).__name__} has {', '.join(map(str, loader))}")


def check_one(loader: Any) -> None:
    """Refuse several loaders where one is trained on."""
    if isinstance(loader, (list, tuple)) and loader and isinstance(loader[0], DataLoader):
        instead = (
            "give the DataLoader itself"
            if len(loader) == 1
            else "to read one after the other, give an object whose __iter__ returns itertools.chain(*loaders); to read a batch of "
            "each at a time, one whose __iter__ returns zip(*loaders)"
        )
        raise TypeError(
            f"the training data must be one loader, and this is a {type(loader).__name__} of {len(loader)}: {instead}"
        )


def _is_loader(value: Any) -> bool:
    if isinstance(value, (Tensor, str, bytes, Mapping, list, tuple)) or hasattr(value, "__array__"):
        return False  # a batch
    return isinstance(value, DataLoader) or hasattr(value, "__iter__")
