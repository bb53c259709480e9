"""Several processes that train together over :mod:`torch.distributed`: who they are, how they meet, and their World."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import subprocess
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from lightloop import Key
from lightloop.toolkit import add_note
from lightloop_plugins.accelerators._launcher.control import ControlledWorld, RankError

T = TypeVar("T")

DEVICES: Key[int] = Key("devices.devices")
"""How many devices of each machine are to be used, where somebody said so."""
NODES: Key[int] = Key("devices.nodes")
"""How many machines are to be used, where somebody said so."""

WIDE = {torch.bool: torch.int32, torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""In which type values are reduced over gloo, for those that it cannot add or adds coarsely."""

FIRST = "the first error was on"


@dataclass(frozen=True)
class Place:
    """Where a launcher has put this process."""

    rank: int
    local_rank: int
    size: int
    launcher: str
    address: str = "127.0.0.1"
    port: int = 29500


def environment(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that torchrun (or who sets the same variables), SLURM's srun, or Open MPI's mpirun has given; else None.

    Raises:
        RuntimeError: if a launcher has put processes on several machines and nobody said where the first one is.
    """

    def number(name: str, default: int = 0) -> int:
        return int(environ.get(name) or default)

    def at(name: str, default: str | None, port: int) -> tuple[str, int]:
        address = environ.get("MASTER_ADDR") or default
        if address is None:
            raise RuntimeError(
                f"{name} has started processes on several machines: set MASTER_ADDR to the first one's name"
            )
        return address, number("MASTER_PORT", port)

    if "RANK" in environ and "WORLD_SIZE" in environ:
        return Place(
            number("RANK"), number("LOCAL_RANK"), number("WORLD_SIZE"), "torchrun", *at("torchrun", "127.0.0.1", 29500)
        )
    if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:  # a batch script has no such step
        hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
        start = number("SLURM_JOB_ID") * 31 + number("SLURM_RESTART_COUNT")  # the port of before may still be taken
        port = 10000 + start % 20000 + number("SLURM_STEP_ID") % 100
        host = environ.get("MASTER_ADDR") or node_address(first_host(hosts))
        size = number("SLURM_STEP_NUM_TASKS")
        return Place(number("SLURM_PROCID"), number("SLURM_LOCALID"), size, "srun", *at("srun", host, port))
    if "OMPI_COMM_WORLD_SIZE" in environ:
        size = number("OMPI_COMM_WORLD_SIZE")
        alone = number("OMPI_COMM_WORLD_LOCAL_SIZE", size) == size
        job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or "0"
        where = at("mpirun", "127.0.0.1" if alone else None, 10000 + zlib.crc32(job.encode()) % 20000)
        return Place(number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_LOCAL_RANK"), size, "mpirun", *where)
    return None


def first_host(hosts: str) -> str:
    """The first of a list of hosts as SLURM writes it, ``node[01-03,7].cluster,other``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else hosts)


@functools.cache
def node_address(name: str) -> str:
    """Where the SLURM node is: its ``name``, or where no name server knows that, the address that SLURM itself has."""
    with contextlib.suppress(OSError):
        socket.getaddrinfo(name, None)
        return name
    with contextlib.suppress(OSError):
        shown = subprocess.run(["scontrol", "show", "node", name, "-o"], capture_output=True, text=True, check=False)
        if found := re.search(r"\bNodeAddr=(\S+)", shown.stdout):
            return found[1]
    return name


class ProcessWorld(ControlledWorld):
    """The processes of one run; what they tell one another goes through a gloo group, so that no device waits for it.

    Where one of the ranks is in a backward that reduces gradients, because another's call is inside its training_step,
    that they are out of step is seen only when the time is out; with ``skip_together=True``, at once.
    """

    def __init__(self, store: Store | None, timeout: timedelta, owns: bool) -> None:
        place = environment()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = 0 if place is None else place.local_rank
        self.store, self.owns = store, owns
        self._timeout, self._groups = timeout, [dist.new_group(backend="gloo", timeout=timeout)]
        self.control: Any = self._groups[0]
        backends = str(dist.get_backend_config()).split(",")
        self._direct = {
            kind for kind, _, engine in (each.partition(":") for each in backends) if kind != "cpu" and engine
        }

    def new_group(self) -> Any:
        """A gloo group of these processes, for whoever talks while others do; all ranks ask for it together."""
        self._groups.append(dist.new_group(backend="gloo", timeout=self._timeout))
        return self._groups[-1]

    def least(self, message: Tensor, within: float | None) -> list[int]:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN  # type: ignore[assignment]
        options.timeout = self._timeout if within is None else min(self._timeout, timedelta(seconds=within))
        try:
            self.control.allreduce([message], options).wait()
        except RuntimeError as error:
            if within is None or "imed out" not in str(error):
                raise
            raise TimeoutError(f"{within} s") from error
        return message.tolist()

    def everyones(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self.control)
        return values

    def told(self, value: T, source: int) -> T:
        box = [value if self.rank == source else None]
        dist.broadcast_object_list(box, source, self.control)
        return box[0]  # type: ignore[return-value]

    def reduce(self, value: Tensor, op: Literal["sum", "mean", "min", "max"] = "sum") -> Tensor:
        value = value.detach()
        direct = value.device.type in self._direct
        whole = value.to("cpu" if not direct else value.device, WIDE.get(value.dtype, value.dtype), copy=True)
        if not direct:
            self.meet(f"reduce ({op} of shape {list(value.shape)})")
        reduction = dist.ReduceOp.SUM if op == "mean" else getattr(dist.ReduceOp, op.upper())
        dist.all_reduce(whole, reduction, None if direct else self.control)
        if op == "mean":
            whole = whole / self.size
        return whole.to(value.device, value.dtype if value.is_floating_point() or op != "mean" else whole.dtype)

    # ------------------------------------------------------------------------------------------------ ways out

    def fail(self, error: BaseException, place: str) -> None:
        """Let the other ranks know of ``error``; or, where another one's was first, note that one on it."""
        if self.store is None:
            return
        mine = f"rank {self.rank}: {type(error).__name__}: {error} (at {place})"
        lost = _is_lost(error)
        try:
            if not lost:
                first = self.store.compare_set("error", "", mine).decode()
            else:
                first = self._first_error()
            if not first.startswith(f"rank {self.rank}:"):
                add_note(error, f"{FIRST} {first}")
            self.store.set(f"knows/{self.rank}", "1")
        except RuntimeError:
            add_note(error, "another rank is gone; if it was not killed, its own error is in what it wrote")

    def _first_error(self) -> str:
        assert self.store is not None
        self.store.wait(["error"], timedelta(seconds=2))
        return str(self.store.get("error").decode())

    def wait_until_known(self, seconds: float = 5.0) -> None:
        """Stay until every rank knows of the error, for the store may end with this process."""
        if self.store is not None and self.rank == 0:
            until = time.monotonic() + seconds
            try:
                while time.monotonic() < until:
                    if self.store.check([f"knows/{rank}" for rank in range(self.size)]):
                        return
                    time.sleep(0.02)
            except RuntimeError:
                return

    def close(self, failed: bool) -> None:
        """Leave the group; ranks that still wait for this one are told at once."""
        if not dist.is_initialized():
            return
        if failed and self.owns and self._direct:  # a device may be in a collective that never ends
            abort = getattr(dist.distributed_c10d, "_abort_process_group", dist.destroy_process_group)
            abort()
        elif self.owns:
            dist.destroy_process_group()
        else:
            for group in self._groups:
                dist.destroy_process_group(group)
        self.control = None
        self._groups = []  # gloo tells the others when nobody here holds it any more


def unexplained(error: BaseException) -> bool:
    """Whether it is what the collectives raise, and no rank has said that it failed before."""
    known = isinstance(error, RankError) or any(note.startswith(FIRST) for note in getattr(error, "__notes__", ()))
    return _is_lost(error) and not known


def _is_lost(error: BaseException) -> bool:
    """Whether it is what the collectives raise where another rank is gone."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in ("peer", "gloo", "nccl", "socket", "store"))
