"""Several processes that train together over Horovod: their World, and how gradients and state go between them."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from lightloop import Loop
from lightloop.toolkit import parameters_of
from lightloop_plugins.accelerators._launcher.control import ControlledWorld, RankError, control_message

T = TypeVar("T")

WIDE = {torch.bool: torch.int32, torch.bfloat16: torch.float32}
"""In which type values travel, for those that Horovod does not know."""
FAILED = "error: "
"""How the message of a rank begins that has failed."""
PATIENCE = 5.0
"""For how many seconds a rank that has failed waits for the others, to tell them of its error."""


def launched() -> bool:
    """Whether horovodrun, or ``horovod.run``, has started this process beside others."""
    elastic = "HOROVOD_ELASTIC" in os.environ
    return elastic or ("HOROVOD_RANK" in os.environ and os.environ.get("HOROVOD_SIZE") != "1")


def engine() -> ModuleType:
    """The module ``horovod.torch``.

    Raises:
        ImportError: where it is not installed, with what to install.
    """
    try:
        import horovod.torch as hvd
    except ImportError as error:
        who = "a process that horovodrun has started" if launched() else "strategy='horovod'"
        raise ImportError(
            f"{who} needs Horovod, built for the torch that is here ({error}): pip install --no-build-isolation "
            "'lightloop[horovod]', with CMake and a C++ compiler; scripts/horovod_env.sh shows how for a recent torch"
        ) from error
    return hvd  # type: ignore[no-any-return]


class HorovodWorld(ControlledWorld):
    """The processes that horovodrun has started."""

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd = hvd
        self.rank, self.local_rank, self.size = hvd.rank(), hvd.local_rank(), hvd.size()

    def least(self, message: Tensor, within: float | None) -> list[int]:
        return self._hvd.synchronize(self._send(message)).tolist()  # type: ignore[no-any-return]

    def everyones(self, value: T) -> list[T]:
        return self._hvd.allgather_object(value, name="lightloop.gather")  # type: ignore[no-any-return]

    def told(self, value: T, source: int) -> T:
        return self._hvd.broadcast_object(value, source, name="lightloop.object")  # type: ignore[no-any-return]

    def out_of_step(self, said: list[str]) -> RankError:
        failures = [f"rank {rank}: {each[len(FAILED) :]}" for rank, each in enumerate(said) if each.startswith(FAILED)]
        if failures:
            return RankError(f"another rank has failed. {'; '.join(failures)}")
        return super().out_of_step(said)

    def fail(self, error: BaseException, place: str) -> bool:
        """Let the other ranks know of ``error`` where they meet next, if that is soon; then leave them.

        Returns:
            False where ``error`` is only that another rank is gone.
        """
        lost = type(error).__name__ == "HorovodInternalError"
        if not lost and not isinstance(error, RankError):
            what = f"{FAILED}{type(error).__name__}: {error} (at {place})"
            with contextlib.suppress(RuntimeError):  # the others may have left
                self._announce(what)
        self._hvd.shutdown()
        return not lost

    def _announce(self, what: str) -> None:
        handle, until = self._send(control_message(what)), time.monotonic() + PATIENCE
        while not self._hvd.poll(handle):
            if time.monotonic() > until:
                return
            time.sleep(0.01)
        least, most, *_ = self._hvd.synchronize(handle).tolist()
        if least != -most:
            self.everyones(what)

    def _send(self, message: Tensor) -> Any:
        return self._hvd.allreduce_async(message, op=self._hvd.Min, name="lightloop.control")

    def reduce(self, value: Tensor, op: Literal["sum", "mean", "min", "max"] = "sum") -> Tensor:
        self.meet(f"reduce ({op} of shape {list(value.shape)})")
        hvd, kind = self._hvd, value.dtype
        wide = torch.float64 if op == "mean" and not kind.is_floating_point else WIDE.get(kind, kind)
        operation = {"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max}[op]
        whole = hvd.allreduce(value.detach().to(wide).contiguous(), op=operation, name=f"lightloop.{op}")
        return whole.to(kind) if kind.is_floating_point or op != "mean" else whole  # type: ignore[no-any-return]


@torch.no_grad()
def share_weights(module: torch.nn.Module, hvd: ModuleType) -> None:
    """Give each rank the parameters and buffers of rank 0, bit for bit."""
    for index, tensor in enumerate((*module.parameters(), *module.buffers())):
        whole = tensor.detach().contiguous().reshape(-1)
        whole = whole.view(torch.uint8) if whole.numel() else whole  # whatever its type is, it is bytes
        if whole.numel():
            hvd.broadcast_(whole, 0, name=f"lightloop.weight.{index}")
            tensor.detach().copy_(whole.view(tensor.dtype).view(tensor.shape))


def share_state(loop: Loop) -> None:
    """Give each rank what rank 0's optimizers, schedules and plugins have to remember."""
    holders = [*loop.optimizers, *(schedule.scheduler for schedule in loop.schedules), *loop.plugins]
    mine = [holder.state_dict() for holder in holders] if loop.world.is_main else []
    states: list[Mapping[str, Any]] = loop.world.broadcast(mine)
    if not loop.world.is_main:
        for holder, state in zip(holders, states, strict=True):
            if state:
                holder.load_state_dict(state)


@torch.no_grad()
def average_gradients(loop: Loop, hvd: ModuleType, compression: Any) -> int:
    """Replace the stepping optimizer's gradients by their means over all ranks; one that some rank lacks counts as 0.

    Returns:
        How many gradients went round.
    """
    world = loop.world
    assert isinstance(world, HorovodWorld)
    parameters = parameters_of(loop.optimizer)
    there = [parameter.grad is not None for parameter in parameters]
    mine = zlib.crc32(bytes(there))
    if (both := world.meet("the mean of the gradients", mine, -mine))[0] != -both[1]:
        anywhere = world.reduce(torch.tensor(there), "max").tolist()
        for parameter, wanted in zip(parameters, anywhere, strict=True):
            if wanted and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    gradients = [(index, each.grad) for index, each in enumerate(parameters) if each.grad is not None]
    for index, gradient in gradients:
        if gradient.is_sparse:
            name = f"lightloop.sparse.{index}"
            parameters[index].grad = hvd.sparse_allreduce_async(
                gradient.coalesce(), name=name, op=hvd.Average
            )().coalesce()
    for kind, group in _by_kind(gradient for _, gradient in gradients if not gradient.is_sparse).items():
        whole = [gradient.to(WIDE.get(gradient.dtype, gradient.dtype)).contiguous() for gradient in group]
        means = hvd.grouped_allreduce(
            whole, op=hvd.Average, compression=compression, name=f"lightloop.gradients.{kind}"
        )
        torch._foreach_copy_(group, means)
    return len(gradients)


def _by_kind(gradients: Iterable[Tensor]) -> dict[str, list[Tensor]]:
    """What may travel in one group: gradients of one type on one device."""
    groups: dict[str, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(f"{gradient.dtype} {gradient.device.type}", []).append(gradient)
    return groups
