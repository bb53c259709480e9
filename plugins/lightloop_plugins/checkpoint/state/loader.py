"""Where the training loader is, and how it gets there again, without reading what was trained on where that can be."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lightloop import Loop
from lightloop.toolkit import Around, warn
from lightloop_plugins.checkpoint.errors import put_back
from lightloop_plugins.checkpoint.state.loader_parts import generators_in, revive
from lightloop_plugins.checkpoint.state.random_state import set_all, set_global
from lightloop_plugins.checkpoint.state.reading import Reading, innermost, is_ahead, kind_of, own_state

log = logging.getLogger("lightloop")


def position(loop: Loop, reading: Reading | None) -> dict[str, Any]:
    """Where the training loader is, in an epoch that is read as ``reading`` says, as a plain tree."""
    inner = innermost(loop.train_loader)
    state: dict[str, Any] = {"kind": kind_of(loop.train_loader)}
    if state["kind"] == "state" and (loop.batch_idx or not _ends_for_good(inner)):
        state["state"] = inner.state_dict()
    if state["kind"] != "itself":
        now = own_state(inner)
        state |= {"now": now["generators"], "persistent": now["persistent"]}
        if loop.batch_idx and reading is not None:
            state |= {"start": reading.start, **(reading.draws.state() if reading.watched else {})}
    evaluation = {name: own_state(loader) for name, loader in _evaluation_loaders(loop)}
    return {**state, "evaluation": {name: own for name, own in evaluation.items() if any(own.values())}}


def restore_evaluation(loop: Loop, state: Mapping[str, Any]) -> None:
    """Put the generators of validation loaders where they were, and let workers that had begun begin."""
    saved = state.get("evaluation", {})
    for name, loader in _evaluation_loaders(loop):
        if name in saved:
            revive(loader, saved[name]["persistent"])
            set_all(generators_in(loader), saved[name]["generators"])


class Resumed(Around):
    """A loader that reads on from a place, for one epoch; every random number is then where it was.

    Args:
        reading: of the loader as it is read; what is known of the epoch becomes its own.
        batches: how many of the epoch are done.
        state: what :func:`position` gave.
        now: the global random numbers at the place.
        what: the checkpoint that has them.
    """

    def __init__(
        self, reading: Reading, batches: int, state: Mapping[str, Any], now: Mapping[str, Any], what: str
    ) -> None:
        super().__init__(reading.loader)
        self.reading = reading
        self._state = state
        self._now = now
        self._what = what
        if batches:
            reading.start = state.get("start")
            reading.draws.load({"reads": batches + is_ahead(self.loader), "moved": {}, **state})
        elif reading.kind != "itself":
            reading.start = {**self._own, "global": now}

    @property
    def _own(self) -> dict[str, Any]:
        return {"generators": self._state.get("now", {}), "persistent": self._state.get("persistent", [])}

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self.iter_from(0)

    def iter_from(self, skip: int) -> Iterator[Any]:
        """The batches after the first ``skip``."""
        inner, kind = self.reading.inner, self.reading.kind
        if kind != self._state["kind"]:
            warn(
                f"the checkpoint was made with a loader that is resumed by {self._state['kind']}, and this "
                f"{type(inner).__name__} is by {kind}: the order of this epoch may be another one",
            )
        with put_back(f"the place in the {type(inner).__name__}", self._what):
            ahead: list[Any] = []
            rest: Iterator[Any] | None = None
            if kind == "state" and "state" in self._state:
                inner.load_state_dict(self._state["state"])
                rest = self.reading.limited(iter(inner), skip) if skip else None
            elif kind == "itself" and skip:
                rest = self.reading.limited(iter(inner.iter_from(skip)), skip)
            elif skip:
                self._to_start()
                ahead, rest = self._replay(skip)
            if rest is None:
                revive(inner, self._own["persistent"])
            set_all(generators_in(inner), self._own["generators"])
            set_global(self._now)
        yield from ahead
        yield from iter(self.reading) if rest is None else rest

    def _to_start(self) -> None:
        """Put everything where it was when the epoch began."""
        start = self._state.get("start")
        if start is not None:
            revive(self.reading.inner, start.get("persistent", ()))
            set_global(start["global"])
            set_all(generators_in(self.reading.inner), start["generators"])

    def _replay(self, skip: int) -> tuple[list[Any], Iterator[Any]]:
        reading = self.reading
        warn_of_workers(reading.inner, self._state)
        if not reading.by_index:
            log.info(
                "going on inside an epoch: the %d batches that were trained on are read once more and dropped", skip
            )
            return reading.repeat(skip)
        log.info("going on inside an epoch: the sampler passes over the %d batches that were trained on", skip)
        return [], reading.begin_by_index(skip)


def warn_of_workers(loader: Any, state: Mapping[str, Any]) -> None:
    """Say what cannot be repeated of a DataLoader: random numbers that its workers have drawn before."""
    if not isinstance(loader, DataLoader) or not loader.num_workers or getattr(loader.worker_init_fn, "repeats", False):
        return
    if isinstance(loader.dataset, IterableDataset) and not (state.get("start") or {}).get("persistent"):
        return  # its workers begin as they began, and read what they read
    warn(
        f"going on inside an epoch of a DataLoader with {loader.num_workers} workers: the order is exact, but random numbers "
        "that the dataset draws in its workers are others. Trainer(seed=...) and "
        "lightloop_plugins.resumable.ResumableLoader have them the same",
    )


def _evaluation_loaders(loop: Loop) -> Iterator[tuple[str, Any]]:
    for stage, loaders in loop.eval_loaders.items():
        for name, loader in loaders.items():
            yield stage if name is None else f"{stage}/{name}", innermost(loader)


def _ends_for_good(loader: Any) -> bool:
    """Whether its state at the end of an epoch says "finished" and would give an empty one: torchdata's does."""
    return type(loader).__module__.startswith("torchdata")
