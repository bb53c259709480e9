"""Keep the rows that loggers are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightloop import Plugin, hookimpl


class Rows(Plugin):
    """A logger that keeps what it is given in ``rows``, each with its step.

    .. code-block:: python

        rows = Rows()
        Trainer(["-*", "log_every", rows], log_every_n_steps=1).fit(Probe(), probe_batches(3))
        assert rows.steps("loss") == [1, 2, 3]
    """

    name = "rows"
    tags = ("logger",)

    def validate(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []

    @hookimpl
    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        self.rows.append((step, dict(metrics)))

    def of(self, prefix: str) -> list[tuple[int, dict[str, Any]]]:
        """The rows with nothing but the values whose names begin with ``prefix``."""
        return [(step, {name: row[name] for name in row if name.startswith(prefix)}) for step, row in self.rows]

    def steps(self, name: str) -> list[int]:
        """At which steps there is a value of that name."""
        return [step for step, row in self.rows if name in row]
