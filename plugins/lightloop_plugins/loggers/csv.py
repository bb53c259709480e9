"""Write metrics to a CSV file."""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from lightloop import Loop, apart, hookimpl, open_in, option, replace_in
from lightloop_plugins.loggers import Ending, Logger

NAME = "metrics.csv"
ASIDE = "metrics.until_step_"
"""How the copy of a file begins whose last rows were left out; the last of their steps follows."""
STEP = "step"
TEXT = {"newline": "", "encoding": "utf-8", "errors": "surrogatepass"}
"""How the file is opened: any name that a metric can have can be written."""


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

    def check(self) -> None:
        if self.flush_every < 1:
            raise self.refuse("flush_every", "a whole number from 1")
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
        self._columns, self._flushed, self._rows = [STEP], loop.global_step, 0
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
        columns, rows = self._read(NAME)
        self._columns = list(resumed.get("columns", columns))
        kept = [row for row in rows[: resumed.get("rows")] if step is None or int(row[STEP]) <= step]
        if len(kept) < len(rows):
            with (
                open_in(self._directory, NAME, "rb") as before,
                replace_in(self._directory, f"{ASIDE}{rows[-1][STEP]}.csv", "wb") as aside,
            ):
                shutil.copyfileobj(before, aside)
        self._rewrite(kept)
        self._rows = len(kept)
        self._last_step = int(kept[-1][STEP]) if kept else self._last_step

    def _drop_repeated(self) -> None:
        """Remove what was kept of the file before the run was resumed, where this run has come to the same rows."""
        asides = [path.name for path in self._directory.glob(f"{glob.escape(ASIDE)}*.csv")]
        rows = _filled(self._read(NAME)[1]) if asides else []
        for name in asides:
            before = _filled(self._read(name)[1])
            if rows[: len(before)] == before:
                (self._directory / name).unlink()

    def _widen(self, new: list[str]) -> None:
        """Add columns; the rows so far have nothing in them."""
        self._shut()
        rows = self._read(NAME)[1]
        self._columns += new
        self._rewrite(rows)
        self._append()

    def _read(self, name: str) -> tuple[list[str], list[dict[str, str]]]:
        """The columns and the whole rows of a file; a process that was killed may have left half a row at its end."""
        with open_in(self._directory, name, **TEXT) as file:
            text = file.read()
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""), restval="")
        return list(reader.fieldnames or [STEP]), [row for row in reader if (row.get(STEP) or "").isdigit()]

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        with replace_in(self._directory, NAME, **TEXT) as file:
            writer = csv.DictWriter(file, self._columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)


def _filled(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if value} for row in rows]
