"""Train in several processes, each with a copy of the module and its own part of the data."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightloop import Loop, hookimpl, option
from lightloop.toolkit import Step, discover, parameters_of
from lightloop_plugins.accelerators._launcher.processes import Processes, no_line_search

BUCKET = 25 * 2**20
"""How many bytes of gradients are reduced at a time, which is what torch takes as well."""
_KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
NO_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"
"""How torch calls the argument that turns the broadcast of buffers off: it changed with 2.13."""
OLD = {"ddp_cpu": "ddp", "ddp_spawn": "ddp", "ddp2": "ddp", "ddp_notebook": "ddp", "ddp_fork": "ddp"}
"""Names of strategies that ddp stands in for: who starts the processes, and where they are, is no strategy any more."""


class Ddp(Processes):
    """Reduce gradients over all processes with torch's ``DistributedDataParallel``.

    It is live under ``strategy="ddp"``, and by itself where a launcher (torchrun, srun, mpirun) has started several
    processes. Without one, ``devices=n`` starts the other processes of this machine: a script is run again by each of
    them, an interactive session is forked. With one process there is nothing to do, and nothing is done.

    Whether a backward reduces is decided before forward: held ones do not. Windows whose last backward was held (those
    that the end of an epoch closes), and all windows where several optimizers have losses of their own or training_step optimizes by
    itself, are reduced just before their step, in buckets. The gradient is the mean over all ranks, with the weights of
    all ranks where training_step gives some. What requires a gradient may change from epoch to epoch.
    """

    name = "ddp"
    transient = ("_parallel", "_step", "_trained", "_reduces", "_whole")
    default = True

    kind: str | bool | None = option(
        None,
        "How several devices train together: the name of a strategy; 'auto' is ddp where a launcher has started several "
        "processes or devices is above 1; False is each process by itself.",
        flag="strategy",
        aliases={
            "distributed_backend": lambda name: OLD.get(name, name),
            "use_ddp": lambda use: "ddp" if use else None,
            "use_ddp2": lambda use: "ddp" if use else None,
            "use_dp": lambda use: "dp" if use else None,
            "use_horovod": lambda use: "horovod" if use else None,
        },
    )
    find_unused_parameters: bool = option(
        False,
        "Find the parameters that the loss does not depend on after each forward; otherwise unused ones are an error.",
        flag="find_unused_parameters",
        enables=False,
    )
    broadcast_buffers: bool = option(
        True, "Broadcast the buffers of rank 0 to all ranks before each forward.", enables=False
    )

    def validate(self) -> None:
        super().validate()
        if self.kind not in (None, False, "auto", *OLD):
            found = [each.plugin for each in discover().values() if each.plugin and each.plugin.group == "strategy"]
            raise self.invalid("kind", f"'auto', False, or one of {', '.join(sorted(each.name for each in found))}")
        self._forget()

    def _forget(self) -> None:
        self._parallel: DistributedDataParallel | None = None
        self._step: Step | None = None
        self._trained: list[bool] = []
        self._reduces = False  # whether the backward that follows brings the gradients together
        self._whole: set[int] = set()  # optimizers whose gradients are those of all ranks

    @hookimpl
    def setup(self, loop: Loop) -> None:
        self._forget()
        if self.kind is False or not self.meet(loop):
            loop.opt_out(self)

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        no_line_search(loop, self)
        self._step, loop.training_step = loop.training_step, self._forward
        self._wrap(loop)

    @hookimpl(wrapper=True)
    def read_batches(self, loop: Loop) -> Generator[None, Any, Any]:
        if self._trained != [parameter.requires_grad for parameter in loop.module.parameters()]:
            self._wrap(loop)
        return (yield)

    @hookimpl
    def after_backward(self, loop: Loop) -> None:
        if not self._reduces:
            return
        assert self._parallel is not None
        try:
            self._parallel._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            error.add_note(
                "ddp: the loss does not depend on all parameters that require a gradient; set find_unused_parameters=True, or "
                "freeze those"
            )
            raise
        self._whole.add(loop.optimizer_idx or 0)

    @hookimpl
    def reduce_gradients(self, loop: Loop) -> None:
        index = loop.optimizer_idx or 0
        if index not in self._whole:
            average_gradients(loop)
        self._whole.discard(index)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        parallel = self._parallel
        self._forget()
        if parallel is not None:  # an error's traceback may hold it, and with its reducer the group that others wait in
            vars(parallel).update(reducer=None, process_group=None, logger=None)
        super().teardown(loop)

    def _forward(self, loop: Loop) -> Any:
        """The training step, which calls the module's; through DDP where the backward of one loss follows."""
        assert self._step is not None
        if self._parallel is None or loop.optimizer_idx is None:
            self._reduces = False
            return self._step(loop)
        self._reduces = self._parallel.require_backward_grad_sync = not (loop.held or loop.replaying)
        return self._parallel(loop)

    def _wrap(self, loop: Loop) -> None:
        self._trained = [parameter.requires_grad for parameter in loop.module.parameters()]
        if len(loop.windows) != 1 or not any(self._trained):
            return
        assert self._step is not None
        buffers = {} if self.broadcast_buffers else {NO_BUFFERS: False}
        self._parallel = DistributedDataParallel(
            Stepper(loop.module, self._step),
            **{"find_unused_parameters": self.find_unused_parameters, **buffers},  # type: ignore[arg-type]
        )
        if loop.world.size > 2 and not self.find_unused_parameters:
            settle(self._parallel)


class Stepper(nn.Module):
    """A module whose forward is the training step of another one."""

    def __init__(self, module: nn.Module, step: Step) -> None:
        super().__init__()
        self.module = module
        self.step = step

    def forward(self, loop: Loop) -> Any:
        """What ``training_step`` returns."""
        return self.step(loop)


def settle(parallel: DistributedDataParallel) -> None:
    """Go through one throw-away backward, after which the order in which gradients are added up does not change any more.

    With more than two ranks that order is seen in the last digits. DDP chooses another after the first backward, so that
    without this a resumed run would differ from one that was never stopped.
    """
    stepper = parallel.module
    step = stepper.step
    parameters = [parameter for parameter in stepper.module.parameters() if parameter.requires_grad]
    kept = [parameter.grad for parameter in parameters]
    stepper.step = lambda loop: torch.stack([parameter.flatten()[:1].sum() * 0 for parameter in parameters]).sum()
    try:
        parallel(None).backward()
    finally:
        stepper.step = step
        for parameter, grad in zip(parameters, kept, strict=True):
            parameter.grad = grad


@torch.no_grad()
def average_gradients(loop: Loop) -> None:
    """Replace the gradients of the stepping optimizer by their mean over all ranks; one that some rank lacks counts as 0."""
    parameters = parameters_of(loop.optimizer)
    there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    buckets: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter, used in zip(parameters, loop.world.reduce(there, "max").tolist(), strict=True):
        if not used:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(loop.world.size)
        else:
            buckets.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter.grad)
    for gradients in buckets.values():
        while gradients:
            size = 0
            chunk: list[Tensor] = []
            while gradients and (not chunk or size < BUCKET):
                chunk.append(gradients.pop(0))
                size += chunk[-1].nbytes
            flat = torch.cat([gradient.reshape(-1) for gradient in chunk])
            dist.all_reduce(flat)
            flat.div_(loop.world.size)
            for gradient, part in zip(chunk, torch.split(flat, [each.numel() for each in chunk]), strict=True):
                gradient.copy_(part.view_as(gradient))
