"""The plugin that ``lightloop verify-resume`` adds to its runs: it writes down what each batch met, and kills one of them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from lightloop import Loop, Plugin, hookimpl
from lightloop.toolkit import map_leaves
from lightloop_plugins.checkpoint.format.safetensors import raw
from lightloop_plugins.checkpoint.state.random_state import take_global

PLAIN = (bool, int, float, complex, str, bytes, type(None))
VARIABLE = "LIGHTLOOP_VERIFY_RESUME"
"""The variable of the environment that says, as JSON, what to do."""


class Witness(Plugin):
    """Write a line for each batch (hashes of the data and of the random numbers, the loss) and for each row of metrics.

    The environment says into which ``folder``, under which ``name``; after which batches to save, ``places``, by default in
    the middle of the first epoch; and after which of them to ``kill`` the process. Ranks have files of their own.
    """

    name = "verify_resume"
    after = ("checkpoint", "log_every", "precision")
    requires = ("checkpoint",)

    def validate(self) -> None:
        self._file: IO[str] | None = None
        self._told: dict[str, Any] = {}
        self._line: dict[str, Any] = {}

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._told = json.loads(os.environ[VARIABLE])
        path = Path(self._told["folder"]) / f"{self._told['name']}-{loop.world.rank}.jsonl"
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        if not self._told["places"]:
            self._told["places"] = [max(1, (loop.num_batches or 2) // 2)]

    @hookimpl
    def before_batch(self, loop: Loop) -> None:
        self._line = {"batch": loop.total_batches + 1, "epoch": loop.epoch, "data": digest(loop.batch)}
        self._line["random"] = {name: digest(value) for name, value in take_global().items()}

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if loop.loss is not None:
            self._line["loss"] = float(loop.loss.detach()).hex()
        self._write(self._line)
        if loop.total_batches + 1 in self._told["places"]:
            for plugin in loop.plugins:
                if plugin.name == "checkpoint":
                    plugin.save_next()  # type: ignore[attr-defined]

    @hookimpl
    def between_batches(self, loop: Loop) -> None:
        if loop.total_batches in self._told["places"]:
            self._write({"saved": loop.total_batches})
        if loop.total_batches == self._told["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)

    @hookimpl
    def log_metrics(self, loop: Loop, metrics: Mapping[str, float], step: int) -> None:
        self._write({"row": step, "metrics": {name: float(value).hex() for name, value in metrics.items()}})

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if loop.status in ("finished", "stopped"):
            self._write({"end": loop.total_batches, "step": loop.global_step})

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def digest(tree: Any) -> str:
    """A hash of all tensors, arrays and plain values in ``tree``; of other objects, their type."""
    sha = hashlib.sha256()

    def add(value: Any, path: str) -> Any:
        sha.update(f"{path} {type(value).__name__} ".encode())
        if isinstance(value, Tensor):
            dense = value.to_dense() if value.layout is not torch.strided else value
            sha.update(f"{dense.dtype} {tuple(dense.shape)} ".encode())
            sha.update(raw(dense))
        elif hasattr(value, "tobytes"):
            sha.update(value.tobytes())
        elif isinstance(value, PLAIN):
            sha.update(repr(value).encode())
        return value

    map_leaves(add, tree)
    return sha.hexdigest()[:16]
