"""Where the training loader is, and how it gets there again, without reading what was trained on where that can be."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lightloop import size_of, warn
from lightloop_plugins.checkpoint.errors import put_back
from lightloop_plugins.checkpoint.random_state import loader_generators, set_all, set_global, take_all, take_global

log = logging.getLogger("lightloop")


def innermost(loader: Any) -> Any:
    """The loader that the wrappers around it, such as a limit, read."""
    while not isinstance(loader, DataLoader) and "loader" in getattr(loader, "__dict__", {}):
        loader = loader.loader
    return loader


def epoch_start(loader: Any) -> dict[str, Any]:
    """What decides the order of an epoch that is about to be read."""
    return {"global": take_global(), "generators": take_all(loader_generators(innermost(loader)))}


def position(loader: Any, batches: int, start: Mapping[str, Any] | None) -> dict[str, Any]:
    """Where ``loader`` is after ``batches`` batches of an epoch that began as ``start`` says, as a plain tree."""
    inner = innermost(loader)
    state: dict[str, Any] = {"kind": kind_of(loader)}
    if state["kind"] == "state" and (batches or not _ends_for_good(inner)):
        state["state"] = inner.state_dict()
    if state["kind"] != "itself":
        state["now"] = take_all(loader_generators(inner))
        if batches:
            state["start"] = start
    return state


def kind_of(loader: Any) -> str:
    """How ``loader`` gets to a place: by "itself", by its "state", or by "replay" of the epoch."""
    inner = innermost(loader)
    if hasattr(inner, "iter_from"):
        return "itself"
    both = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
    return "state" if both and not is_ahead(loader) else "replay"


def is_ahead(loader: Any) -> bool:
    """Whether the loop has read a batch more than it has trained on."""
    return size_of(loader) is None and getattr(loader, "most", None) is None and getattr(loader, "reads_ahead", False)


class Resumed:
    """A loader that reads on from a place, for one epoch; every global random number is then where it was.

    Args:
        loader: the loader as it is read.
        batches: how many of the epoch are done.
        state: what :func:`position` gave.
        now: the global random numbers at the place.
        what: the checkpoint that has them.
    """

    def __init__(self, loader: Any, batches: int, state: Mapping[str, Any], now: Mapping[str, Any], what: str) -> None:
        self.loader = loader
        self._batches = batches
        self._state = state
        self._now = now
        self._what = what

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self.iter_from(0)

    def iter_from(self, skip: int) -> Iterator[Any]:
        """The batches after the first ``skip``."""
        if not skip:  # an epoch that begins draws its order from where the numbers are
            set_global(self._now)
            yield from self._begin(skip)
            return
        rest, waiting = self._begin(skip), []
        if is_ahead(self.loader):
            waiting = list(itertools.islice(rest, 1))
        if innermost(self.loader) is not self.loader and size_of(self.loader) is not None:
            rest = itertools.islice(rest, len(self) - skip)  # what is around it has a limit
        set_global(self._now)
        yield from waiting
        yield from rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def _begin(self, skip: int) -> Iterator[Any]:
        inner = innermost(self.loader)
        kind = kind_of(self.loader)
        if kind != self._state["kind"]:
            warn(
                f"the checkpoint was made with a loader that is resumed by {self._state['kind']}, and this "
                f"{type(inner).__name__} is by {kind}: the order of this epoch may be another one",
            )
        batches: Iterator[Any]
        if kind == "itself" and skip:
            batches = iter(inner.iter_from(skip))
            return batches
        by_state = kind == "state" and "state" in self._state
        with put_back(f"the place in the {type(inner).__name__}", self._what):
            if by_state:
                inner.load_state_dict(self._state["state"])
            elif not skip:
                set_all(loader_generators(inner), self._state.get("now", {}))
            elif (start := self._state.get("start")) is not None:
                set_global(start["global"])
                set_all(loader_generators(inner), start["generators"])
        if skip and not by_state:
            return replay(self.loader, skip)
        batches = iter(inner if by_state and size_of(self.loader) is not None else self.loader)
        return batches


def replay(loader: Any, skip: int) -> Iterator[Any]:
    """Read an epoch of ``loader`` from batch ``skip`` on; the sampler alone is advanced where there is one."""
    inner = innermost(loader)
    if not isinstance(inner, DataLoader) or isinstance(inner.dataset, IterableDataset):
        log.info("going on inside an epoch: the %d batches that were trained on are read once more and dropped", skip)
        rest: Iterator[Any] = iter(loader)
        for _ in itertools.islice(rest, skip):
            pass
        return rest
    log.info("going on inside an epoch: the sampler passes over the %d batches that were trained on", skip)
    batches: Iterator[Any]
    if inner.num_workers == 0:
        batches = iter(inner)
        for _ in itertools.islice(batches._sampler_iter, skip):  # type: ignore[attr-defined]
            pass
        return batches
    warn(
        f"going on inside an epoch of a DataLoader with {inner.num_workers} workers: the order is exact, but random numbers "
        "that the dataset draws in its workers are others. lightloop_plugins.resumable.ResumableLoader has them the same",
    )
    return _begin_late(inner, skip)


def _begin_late(loader: DataLoader[Any], skip: int) -> Iterator[Any]:
    """Begin to read with a sampler that has passed over ``skip`` batches before any worker is told to read one."""
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = vars(loader)[name]
    vars(loader)[name] = _Late(sampler, skip)  # torch lets nobody set it
    try:
        return iter(loader)
    finally:
        vars(loader)[name] = sampler


class _Late:
    """A sampler whose first pass begins ``skip`` later; a loader with persistent workers goes on to use it."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        self.sampler = sampler
        self.skip = skip

    def __iter__(self) -> Iterator[Any]:
        # A generator: the loader makes two of them when it begins, and advances the second alone.
        skip, self.skip = self.skip, 0
        yield from itertools.islice(iter(self.sampler), skip, None)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


def _ends_for_good(loader: Any) -> bool:
    """Whether its state at the end of an epoch says "finished" and would give an empty one: torchdata's does."""
    return type(loader).__module__.startswith("torchdata")
