"""Log runs to MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightloop import Loop, option
from lightloop.toolkit import keep_random
from lightloop_plugins.loggers import Ending, Logger

STATUSES = {"success": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
AT_ONCE = 100
"""How many hyperparameters MLflow takes in one call."""
ALLOW_FILES = "MLFLOW_ALLOW_FILE_STORE"
"""MLflow wants to be told that a store of plain files is meant."""


class MLflow(Logger):
    """Log metrics and hyperparameters to a run of MLflow: in a folder of files, or on a server.

    A resumed run goes on in its old one, if that is still there.
    """

    name = "mlflow"
    works_with = ">=0.1"
    state = ("run_id",)
    transient = ("_client",)
    on_failure = "disable"  # a server that is away ends no training

    uri: str | None = option(
        None,
        "Where the store is: a folder, sqlite:///file.db, or the address of a server; MLFLOW_TRACKING_URI if None, and the "
        "folder mlruns beside the runs if that is not set.",
    )
    experiment: str | None = option(
        None, "The experiment; that of the run's directory, such as the module's class, if None."
    )

    def validate(self) -> None:
        self.run_id: str | None = None
        self._client: Any = None

    def open(self, loop: Loop, directory: Path) -> None:
        from mlflow.tracking import MlflowClient

        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or str(directory.parent.parent / "mlruns")
        if "://" not in uri and not uri.startswith("file:"):
            uri = Path(uri).absolute().as_uri()
        with _opening():
            self._client = MlflowClient(tracking_uri=uri)
            self.run_id = self._known(self.run_id if loop.global_step else None) or self._new(directory)

    def write_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        known = self._client.get_run(self.run_id).data.params  # those of a resumed run cannot be changed
        params = [Param(plain(name), str(value)) for name, value in hyperparameters.items() if plain(name) not in known]
        for first in range(0, len(params), AT_ONCE):
            self._client.log_batch(self.run_id, params=params[first : first + AT_ONCE])

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self.run_id, [Metric(plain(name), value, now, step) for name, value in metrics.items()])

    def close(self, status: Ending) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.set_terminated(self.run_id, STATUSES[status])

    def _known(self, run_id: str | None) -> str | None:
        """``run_id``, if the store has such a run; it is running again."""
        from mlflow.exceptions import MlflowException

        if run_id is None:
            return None
        try:
            self._client.update_run(run_id, status="RUNNING")
        except MlflowException:
            return None
        return run_id

    def _new(self, directory: Path) -> str:
        name = self.experiment or directory.parent.name
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        return str(self._client.create_run(experiment, run_name=directory.name).info.run_id)


@contextmanager
def _opening() -> Iterator[None]:
    """Allow a store of files, and keep the program's random numbers, of which MLflow makes the ids of experiments."""
    told, put_back = ALLOW_FILES in os.environ, keep_random()
    os.environ.setdefault(ALLOW_FILES, "true")
    try:
        yield
    finally:
        put_back()
        if not told:
            del os.environ[ALLOW_FILES]


def plain(name: str) -> str:
    """``name`` in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)
