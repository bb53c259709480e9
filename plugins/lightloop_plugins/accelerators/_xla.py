"""PyTorch/XLA: where it is, and what a run compiles."""

from __future__ import annotations

import importlib
import zlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightloop.toolkit import warn

SPMD = "spmd"
"""The tag of a strategy that needs the process to be in that state before the device is used."""
WARM_UP = 3
"""After so many steps, no optimizer that torch has meets a graph for the first time."""


def engine(name: str = "torch_xla") -> ModuleType:
    """A module of PyTorch/XLA.

    Raises:
        ImportError: where it is not installed, with what to install.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"XLA needs PyTorch/XLA, of the same minor version as torch, which is {torch.__version__} ({error}): "
            "pip install 'lightloop[xla]', with torch 2.9"
        ) from error


def seed_of_torch() -> int:
    """A number that depends on where torch's own random numbers are, none of which it takes."""
    return zlib.crc32(bytes(torch.get_rng_state().numpy()))


class Compilations:
    """Counts what a run compiles, and says where batches of ever new shapes are the reason.

    XLA compiles a program for each new shape, which takes seconds. A few are in order: the last batch of an epoch, say.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        """Programs that were compiled since the run began."""
        self._before = self._compiled()
        self._shapes: set[str] = set()
        self._late: list[str] = []

    def look(self, batch: Any, steps: int) -> None:
        """Take in what the work on ``batch``, after so many steps, has compiled."""
        compiled = self._compiled()
        new, self._before = max(0, compiled - self._before), compiled
        self.count += new
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        fresh = shapes not in self._shapes
        self._shapes.add(shapes)
        if new and fresh and steps > WARM_UP:
            self._late.append(shapes)
            if len(self._late) == self.limit:
                warn(
                    f"xla: {self.limit} batches had shapes that none before had, and a program was compiled for each: "
                    f"{'; '.join(self._late)}. Pad them to one shape, or to a few",
                )

    def _compiled(self) -> int:
        data = engine("torch_xla.debug.metrics").metric_data("CompileTime")
        return int(data[0]) if data else 0
