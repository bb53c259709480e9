"""The interface between strategies that shard tensors over ranks and plugins that save them."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from lightloop import Key


class Sharding(Protocol):
    """The strategy's side; all of it concerns all ranks together."""

    mesh: Any
    """The DeviceMesh over which parameters are split; it has one dimension."""
    group: Any
    """A gloo process group that nobody else uses: training may go on while there is traffic in it."""

    def prepare(self) -> None:
        """Let the module's parameters be the parts, not what has been gathered of them."""

    def waiting(self) -> dict[str, Tensor]:
        """This rank's gradients that have not been reduced yet, each of the shape of its whole parameter, by name."""

    def set_waiting(self, gradients: dict[str, Tensor]) -> None:
        """Put back what :meth:`waiting` gave."""


SHARDING: Key[Sharding] = Key("sharding")
"""There where the run's tensors are split."""
