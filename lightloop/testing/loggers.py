"""The tests that every logger passes: subclass :class:`LoggerContract` in a test file."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lightloop import Loop, Plugin, Trainer, hookimpl
from lightloop.testing.contract import SAVING, PluginContract
from lightloop.testing.models import Probe, probe_batches

Row = tuple[int, str, float]
"""A number that was logged: its step, its name and its value."""
NAMES = ("x", "acc/top 1", "acc/top_1", "größe", "time")


class LoggerContract(PluginContract):
    """Holds a logger to what every logger owes a run: no row is lost, none is there twice, and each keeps its name.

    .. code-block:: python

        class TestLines(LoggerContract):
            plugin = "lines"

            def rows(self, directory):
                lines = (directory / "metrics.jsonl").read_text().splitlines()
                return [(step, name, value) for step, row in map(json.loads, lines) for name, value in row.items()]

    Runs are killed by SIGKILL, in processes that are forked for it.
    """

    kills: ClassVar[Sequence[int]] = (0, 1, 3, 4)
    """After which of the six batches a run is killed; a checkpoint is made after batches 2 and 4."""

    def rows(self, directory: Path) -> list[Row]:
        """Read back what is in a run's directory, as a user's tools show it, in the order in which it was logged."""
        raise NotImplementedError

    def test_no_row_before_a_checkpoint_is_lost_when_the_process_is_killed(self, tmp_path: Path) -> None:
        self._live(tmp_path, "run", kill_after=4)
        self._see(self._found(tmp_path, "run"), [row for row in _expected() if row[0] <= 4], "after a kill", least=True)

    def test_a_run_that_was_killed_and_resumed_has_the_rows_of_one_that_was_not(self, tmp_path: Path) -> None:
        self._live(tmp_path, "whole")
        self._see(self._found(tmp_path, "whole"), _expected(), "in a run that was not stopped")
        for kill in self.kills:
            self._live(tmp_path, f"killed-{kill}", kill_after=kill)
            self._live(tmp_path, f"killed-{kill}", resume="auto")
            self._see(self._found(tmp_path, f"killed-{kill}"), _expected(), f"killed after batch {kill} and resumed")

    def _found(self, root: Path, run: str) -> list[Row]:
        return self.rows(root / "Probe" / run)

    def _live(self, root: Path, run: str, kill_after: int | None = None, resume: str | None = None) -> None:
        """Train in a process of its own, which may be killed."""

        def work() -> None:
            logger = self.make()
            options = {**self.trainer, "save_every": "2 batches", "log_every_n_steps": 0, "default_root_dir": str(root)}
            plugins = ["-*", *SAVING, "lockstep", "log_every", *self.others, logger, _Rows(kill_after)]
            trainer = Trainer(plugins, run_version=run, resume=resume, **options)
            trainer.fit(Probe(), probe_batches(6))

        status = in_child(work)
        assert status == (0 if kill_after is None else -signal.SIGKILL), "the run failed; its error is above"

    def _see(self, found: list[Row], wanted: list[Row], when: str, least: bool = False) -> None:
        lost = [row for row in wanted if row not in found]
        assert lost == [], f"{when} these rows are not there: {lost}"
        if not least:
            assert found == wanted, f"{when} the rows are {found}, and what was logged is {wanted}"


class _Rows(Plugin):
    """Logs a row after each batch, and is killed when the batch ``last`` is over and saved."""

    name = "rows_for_test"
    after = ("checkpoint",)

    def __init__(self, last: int | None) -> None:
        super().__init__()
        self.last = last

    @hookimpl
    def before_batch(self, loop: Loop) -> None:
        if self.last == loop.total_batches:
            os.kill(os.getpid(), signal.SIGKILL)

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        loop.write(_row(loop.total_batches))


def _row(batch: int) -> dict[str, float]:
    late = {"late": float(batch)} if batch >= 2 else {}  # a column that is not there from the beginning
    return {name: batch + number / 8 for number, name in enumerate(NAMES)} | late


def _expected() -> list[Row]:
    return [(batch + 1, name, value) for batch in range(6) for name, value in _row(batch).items()]


def in_child(work: Callable[[], Any]) -> int:
    """Run ``work`` in a forked process; its exit status, negative for the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
