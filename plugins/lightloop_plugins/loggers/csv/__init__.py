"""Write metrics to a CSV file."""

from __future__ import annotations

import csv
import glob
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from lightloop import Loop, hookimpl, option
from lightloop.toolkit import apart, open_in, replace_in
from lightloop_plugins.loggers import Ending, Logger
from lightloop_plugins.loggers.csv import table
from lightloop_plugins.loggers.csv.table import STEP, TEXT, Place

NAME = "metrics.csv"
ASIDE = "metrics.until_step_"
"""How the copy of a file begins whose last rows were left out; the last of their steps follows."""


class Csv(Logger):
    """Write ``metrics.csv`` in the run's directory: a column ``step``, then one for each metric, one row per writing.

    A row is given to the system when it is written, unless ``flush_every`` says otherwise, and is on the disk before a
    checkpoint is made. A resumed run appends: rows and columns that came after its checkpoint are left out. The file as it
    was is kept beside it until the run ends with the same rows again, and for good where it has others. A metric of the
    name ``step`` has the column ``step_``.
    """

    name = "csv"
    default = True
    state = ("_rows", "_columns")
    transient = ("_file", "_directory", "_flushed", "_resumed")

    flush_every: int = option(
        1,
        "Steps between two writes to the disk; what is not yet written when the run ends is written then.",
        flag="flush_logs_every_n_steps",
        aliases=("log_save_interval",),
        enables=False,
        neutral=True,
    )

    def validate(self) -> None:
        if self.flush_every < 1:
            raise self.invalid("flush_every", "a whole number from 1")
        self._file: IO[str] | None = None
        self._columns: list[str] = [STEP]
        self._directory = Path()
        self._flushed = self._rows = 0
        self._resumed: Mapping[str, Any] | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        super().setup(loop)
        self._resumed = None

    def open(self, loop: Loop, directory: Path) -> None:
        self._directory = directory
        self._columns, self._flushed = [STEP], loop.global_step
        self._rows = 0
        self._append()  # first, for it is refused if it is no file of this run
        if self._file is not None and self._file.tell():
            self._shut()
            self._go_on(loop.global_step if loop.stage == "fit" else None)
            self._append()

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        text = json.dumps(hyperparameters, indent=2, default=str)
        with replace_in(self._directory, "hparams.json", encoding="utf-8") as file:
            file.write(text + "\n")

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        row: dict[str, float] = {STEP: step}
        row.update(apart(metrics, STEP))
        known = set(self._columns)
        if new := [name for name in row if name not in known]:
            self._widen(new)
        assert self._file is not None
        csv.writer(self._file).writerow([row.get(name, "") for name in self._columns])
        self._rows += 1
        if step - self._flushed >= self.flush_every or self.flush_every == 1:
            self._file.flush()
            self._flushed = step

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self, status: Ending) -> None:
        self._shut()
        if status == "success":
            self._drop_repeated()

    def state_dict(self) -> dict[str, Any]:
        size = 0
        if self._file is not None:
            self._file.flush()
            size = os.fstat(self._file.fileno()).st_size
        return {**super().state_dict(), "size": size}  # so that a resumed run need not count rows

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._resumed = state

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _append(self) -> None:
        self._file = open_in(self._directory, NAME, "a", **TEXT)

    def _go_on(self, step: int | None) -> None:
        """Take up the file that is there, without what came after the run was where it goes on, at ``step``."""
        resumed = self._resumed or {}
        with open_in(self._directory, NAME, "rb") as file:
            columns, begin = table.header(file)
            self._columns = list(resumed.get("columns", columns))
            same = begin > 0 and self._columns == columns
            if step is None and same:  # all of it is kept, however many rows there are
                kept = Place(table.end_of_lines(file, begin), 0, table.last_step(file, begin))
            else:
                start = self._known(file, begin, step) if same else None
                kept = table.end_of(file, start or Place(begin), resumed.get("rows"), step)
            last = table.last_step(file, kept.at)
        if last is not None:
            with (
                open_in(self._directory, NAME, "rb") as before,
                replace_in(self._directory, f"{ASIDE}{last}.csv", "wb") as aside,
            ):
                shutil.copyfileobj(before, aside)
        if same:
            with open_in(self._directory, NAME, "r+b") as file:
                file.truncate(kept.at)
        else:
            table.rewrite(self._directory, NAME, self._columns, kept.rows)
        self._rows = kept.rows
        self._last_step = self._last_step if kept.step is None else kept.step

    def _known(self, file: IO[bytes], begin: int, step: int | None) -> Place | None:
        """Where the file ended when the run was saved: what is before that need not be read."""
        saved = self._resumed or {}
        return table.known(file, begin, saved["size"], saved["rows"], step) if saved.get("size") else None

    def _drop_repeated(self) -> None:
        """Remove what was kept of the file before the run was resumed, where this run has come to the same rows."""
        for path in self._directory.glob(f"{glob.escape(ASIDE)}*.csv"):
            if table.begins_with(self._directory, NAME, path.name):
                path.unlink()

    def _widen(self, new: list[str]) -> None:
        """Add columns; the rows so far have nothing in them."""
        self._shut()
        self._columns += new
        table.rewrite(self._directory, NAME, self._columns)
        self._append()
