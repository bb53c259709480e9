"""The proof that a run can be killed anywhere: each boundary between batches is tried, and the whole state compared."""

from __future__ import annotations

import csv
import random
import shutil
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lightloop import Loop, Plugin, Trainer, hookimpl
from lightloop.testing.snapshots import Snapshot, differing, digest, snapshot

Boundary = tuple[int, int]
"""How many batches were done, and the epoch of the next one."""
END = (-1, -1)
"""In the place of a boundary: after the fit."""
PLACE = {"run_name": "run", "run_version": "run", "save_every": None}


OVER = ("plugins.*", "files.*", "batch")
"""What is not compared where a run is resumed that was over: nothing is trained, and loggers have nothing to write."""


class Killed(BaseException):
    """What ends a run of :class:`Witness` after some batch; no part of the library may take notice of it."""


class Witness(Plugin):
    """Keeps the whole state at each boundary between batches, and a copy of the run's files as a kill would leave them.

    Args:
        root: where the run's files are.
        copies: where the copies go, a folder for each boundary; without it, none is made.
        saves: save a checkpoint at each boundary.
        kill: the boundary at which the run ends without warning.
    """

    name = "witness"
    tags = ("watches",)
    after = ("checkpoint", "log_every", "resume")

    def __init__(
        self, root: Path, copies: Path | None = None, saves: bool = True, kill: Boundary | None = None
    ) -> None:
        super().__init__()
        self.root, self.copies, self.saves, self.kill = root, copies, saves, kill
        self.seen: dict[Boundary, Snapshot] = {}
        self.batch = ""

    @hookimpl
    def before_batch(self, loop: Loop) -> None:
        self.batch = digest(loop.batch)

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        saver = loop.trainer.plugin("checkpoint")
        if self.saves and saver is not None:
            saver.save_next()

    @hookimpl(wrapper=True, tryfirst=True)
    def between_batches(self, loop: Loop) -> Generator[None, None, None]:
        yield
        here = (loop.total_batches, loop.epoch)
        self.look(loop, here)
        if self.copies is not None:
            shutil.copytree(self.root, self.copies / named(here))
        if self.kill == here:
            raise Killed

    def look(self, loop: Loop, number: Boundary) -> None:
        """Keep the state as it is now."""
        found = snapshot(loop, self.root)
        self.seen[number] = {
            **{path: text for path, text in found.items() if not path.startswith("plugins.witness")},
            "batch": self.batch if number != END else "",
        }


@dataclass(frozen=True)
class Parting:
    """A value that a resumed run did not have as the run that was not stopped."""

    killed: str
    """After how many batches it was killed, or how the runs differ otherwise."""
    at: Boundary
    """Where it was seen."""
    path: str
    """What it is: ``plugins.NAME.ATTRIBUTE`` of a plugin, ``module.NAME`` of the module."""
    whole: str | None
    resumed: str | None

    def __str__(self) -> str:
        where = "at the end" if self.at == END else f"after batch {self.at[0]} (epoch {self.at[1]})"
        return f"{self.killed}: {self.path} {where} is {self.resumed}; {self.whole} in the run that was not stopped"


@dataclass
class Report:
    """What was tried, and what differed."""

    boundaries: int = 0
    """At how many the run was killed and resumed."""
    lives: int = 0
    """How many runs that took."""
    values: int = 0
    """How many values were compared."""
    partings: list[Parting] = field(default_factory=list)

    def __str__(self) -> str:
        told = "\n".join(f"  {each}" for each in self.partings[:20])
        more = f"\n  and {len(self.partings) - 20} more" if len(self.partings) > 20 else ""
        return f"{self.boundaries} boundaries, {self.lives} runs, {self.values} values compared\n{told}{more}"

    @property
    def first(self) -> list[Parting]:
        """The first parting of each attribute, the earliest in the run before others, and of those the plugins'."""
        each = {parting.path: parting for parting in reversed(self.partings)}.values()
        return sorted(each, key=lambda found: (found.at == END, found.at, not found.path.startswith("plugins.")))


@dataclass
class Resuming:
    """A run that is made again and again.

    Args:
        folder: an empty folder for the files of all runs.
        trainer: makes a new Trainer with the keywords and the plugin that it is given.
        module: makes a new module, the same each time.
        data: makes the data anew: what ``fit`` takes after the module.
        unsteady: patterns of paths that no two runs have in common, such as those of metrics that measure time.
    """

    folder: Path
    trainer: Callable[[Plugin, Mapping[str, Any]], Trainer]
    module: Callable[[], nn.Module]
    data: Callable[[], Sequence[Any]]
    unsteady: tuple[str, ...] = ()

    def prove(self, sample: int | None = None) -> Report:
        """Kill the run at every boundary (or at so many of them), resume it, and compare all that comes with the whole run.

        Each is tried twice: resumed until the end, and in a chain of lives of one batch each. Before, a run that saves at
        every boundary is compared with one that does not save at all. Where a run was stopped inside an epoch, the last
        boundary is not tried: it is for the user, and for what stopped it, whether it goes on.
        """
        report = Report()
        plain = self.live("plain", report)
        whole = self.live("whole", report, copies=True)
        self._compare(report, "saved at each boundary", plain, whole, ("plugins.checkpoint.*", "files.checkpoints.*"))
        boundaries = [each for each in whole if each != END]
        if whole[boundaries[-1]]["batch_idx"] != "0":  # stopped inside an epoch; resumed, it may be meant to go on
            boundaries.pop()
        for here in boundaries if sample is None else boundaries[:: -(-len(boundaries) // sample)]:
            report.boundaries += 1
            rest = self.live(f"at/{named(here)}", report, resume=True)
            over = OVER if here == boundaries[-1] else ()
            self._compare(report, f"killed after batch {here[0]} (epoch {here[1]})", whole, rest, over)
        if sample is None:
            self._live_by_batch(report, whole, boundaries)
        return report

    def find_unsteady(self) -> None:
        """Leave out of the comparison which metrics and attributes of plugins differ between two runs that no one stops."""
        first, again = (self.live(name, Report()) for name in ("plain", "again"))
        paths = {path for number in first for path in differing(first[number], again.get(number, {}))}
        self.unsteady = (*self.unsteady, *sorted({pattern for path in paths for pattern in _alike(path)}))

    def _live_by_batch(self, report: Report, whole: Mapping[Boundary, Snapshot], boundaries: list[Boundary]) -> None:
        """A life for each batch."""
        place = "lives"
        for number, here in enumerate(boundaries):
            life = self.live(place, report, copies=True, resume=number > 0, kill=here)
            self._compare(report, "killed after each batch", whole, life)
            place = f"{place}-at/{named(here)}"

    def live(
        self, name: str, report: Report, *, copies: bool = False, resume: bool = False, kill: Boundary | None = None
    ) -> dict[Boundary, Snapshot]:
        """One run with the files in the folder ``name``: what it was at each boundary, and at its end."""
        report.lives += 1
        root = self.folder / name
        where = self.folder / ("at" if name == "whole" else f"{name}-at") if copies else None
        witness = Witness(root, where, name not in ("plain", "again"), kill)
        options = {**PLACE, "default_root_dir": str(root), "resume": "auto" if resume else None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module, data = self.module(), self.data()
            trainer = self.trainer(witness, options)
            scramble(report.lives if resume else 0)
            try:
                trainer.fit(module, *data)
            except Killed:
                return witness.seen
        assert trainer.loop is not None
        witness.look(trainer.loop, END)
        witness.seen[END] |= files(root)
        return witness.seen

    def _compare(
        self,
        report: Report,
        killed: str,
        whole: Mapping[Boundary, Snapshot],
        rest: Mapping[Boundary, Snapshot],
        apart: tuple[str, ...] = (),
    ) -> None:
        for number, there in rest.items():
            here = whole.get(number, {})
            apart = (*apart, *([] if there["batch"] else ["batch"]))  # no batch was trained in that life until there
            report.values += len(here)
            for path in differing(here, there, (*self.unsteady, *apart)):
                report.partings.append(Parting(killed, number, path, here.get(path), there.get(path)))


def named(boundary: Boundary) -> str:
    """The name of the folder for a boundary."""
    return f"{boundary[0]}-{boundary[1]}"


def _alike(path: str) -> Iterator[str]:
    """The patterns of all that goes with the value at ``path``, where that is a plugin's attribute or a metric."""
    kind, *names = path.split(".")
    if kind == "plugins":
        yield f"plugins.{escape('.'.join(names[:2]))}*"
    for before, number in (("metrics", 1), ("epoch_metrics", 0), ("files", 2)):
        if kind == before and len(names) > number and names[number] != "#":
            name = escape(names[number])
            yield from (f"metrics.*.{name}*", f"epoch_metrics.{name}*", f"files.metrics.*.{name}*")


def scramble(seed: int) -> None:
    """Put every global generator somewhere else."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for _ in range(seed % 2):
        random.gauss(0, 1)  # of two, the second is kept for the next call


def files(root: Path) -> Snapshot:
    """What the files of a run say: the rows of its metrics, and which checkpoints there are."""
    found: Snapshot = {}
    for path in sorted(root.rglob("metrics.csv")):
        with open(path, newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file)):
                found |= {f"files.metrics.{number}.{name}": str(value) for name, value in row.items()}
    for path in sorted(root.rglob("step-*-batch-*")):
        found[f"files.checkpoints.{path.name}"] = "there"
    return found
