"""Write metrics to a CSV file."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from lightloop import Loop, hookimpl, open_in, option, replace_in
from lightloop_plugins.loggers import Ending, Logger

NAME = "metrics.csv"


class Csv(Logger):
    """Write ``metrics.csv`` in the run's directory: a column ``step``, then one for each metric, one row per writing.

    A row is on disk when it has been written, unless ``flush_every`` says otherwise, and whenever a checkpoint is made. A
    resumed run appends; rows that came after its checkpoint are left out, and the file as it was is kept beside it.
    """

    name = "csv"
    default = True
    state = ("_rows",)
    transient = ("_file", "_columns", "_directory", "_flushed", "_resumed")

    flush_every: int = option(
        1,
        "Steps between two writes to the disk; what is not yet written when the run ends is written then.",
        flag="flush_logs_every_n_steps",
        aliases=("log_save_interval",),
        enables=False,
    )

    def check(self) -> None:
        if self.flush_every < 1:
            raise self.refuse("flush_every", "a whole number from 1")
        self._file: IO[str] | None = None
        self._columns: list[str] = []
        self._directory = Path()
        self._flushed = self._rows = 0
        self._resumed: int | None = None

    @hookimpl
    def setup(self, loop: Loop) -> None:
        super().setup(loop)
        self._resumed = None

    def open(self, loop: Loop, directory: Path) -> None:
        self._directory = directory
        self._columns, self._flushed, self._rows = ["step"], loop.global_step, 0
        self._append()  # first, for it is refused if it is no file of this run
        if self._file is not None and self._file.tell():
            self.close("success")
            self._go_on(loop.global_step if loop.stage == "fit" else None)
            self._append()

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        text = json.dumps(hyperparameters, indent=2, default=str)
        with replace_in(self._directory, "hparams.json", encoding="utf-8") as file:
            file.write(text + "\n")

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        known = set(self._columns)
        new = [name for name in metrics if name not in known]
        if new:
            self._widen(new)
        assert self._file is not None
        row = {"step": step, **metrics}
        csv.writer(self._file).writerow([row.get(name, "") for name in self._columns])
        self._rows += 1
        if step - self._flushed >= self.flush_every or self.flush_every == 1:
            self._file.flush()
            self._flushed = step

    def close(self, status: Ending) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def state_dict(self) -> dict[str, Any]:
        if self._file is not None:
            self._file.flush()
        return {"rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._resumed = state["rows"]

    def _append(self) -> None:
        self._file = open_in(self._directory, NAME, "a", newline="", encoding="utf-8")

    def _go_on(self, step: int | None) -> None:
        """Take up the file that is there, without the rows that came after the run was where it goes on, at ``step``."""
        self._columns, rows = self._read()
        kept = [row for row in rows[: self._resumed] if step is None or int(row["step"]) <= step]
        if len(kept) < len(rows):
            with (
                open_in(self._directory, NAME, "rb") as before,
                replace_in(self._directory, f"metrics.until_step_{rows[-1]['step']}.csv", "wb") as kept_beside,
            ):
                shutil.copyfileobj(before, kept_beside)
            self._rewrite(kept)
        self._rows = len(kept)
        self._last_step = int(kept[-1]["step"]) if kept else self._last_step

    def _widen(self, new: list[str]) -> None:
        """Add columns; the rows so far have nothing in them."""
        self.close("success")
        _, rows = self._read()
        self._columns += new
        self._rewrite(rows)
        self._append()

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        with open_in(self._directory, NAME, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")
            rows = [row for row in reader if row["step"].isdigit()]  # a run that was killed may leave half a row
            return list(reader.fieldnames or ["step"]), rows

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        with replace_in(self._directory, NAME, newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
