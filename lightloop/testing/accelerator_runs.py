"""The runs that the contract of accelerators is made of: what is trained, who watches, and what goes wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from lightloop.hookspecs import hookimpl
from lightloop.host.plugin import Plugin
from lightloop.loop import Loop
from lightloop.module import Module
from lightloop.trainer import Trainer

BATCHES = 10
"""How many batches each rank has in an epoch."""
SIZE = 3
"""Samples in a rank's batch."""


class Blocks(Module):
    """A network of blocks, as transformers are; batches are ``(x, y)`` of shapes ``(n, 6)`` and ``(n, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6)) for _ in range(2))
        self.head = nn.Linear(6, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)

    def forward(self, x: Tensor) -> Tensor:
        """Of shape ``(n, 2)``."""
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)  # type: ignore[no-any-return]

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean squared error, logged as ``loss``."""
        loss: Tensor = (self(batch[0]) - batch[1]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Logs ``val_loss``, and how many samples there were."""
        self.log("val_loss", (self(batch[0]) - batch[1]).pow(2).mean())
        self.log("seen", len(batch[0]), reduce="sum")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)


def samples(count: int) -> TensorDataset:
    """So many samples, always the same."""
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, 6, generator=generator), torch.randn(count, 2, generator=generator))


class Watch(Plugin):
    """Records each step's loss and global norm."""

    name = "watch"
    before = ("clip",)

    def validate(self) -> None:
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        if loop.loss is not None:
            self.losses.append(loop.loss.detach().clone())

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        self.norms.append(loop.grad_norm(2.0).clone())


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what goes to other ranks and, of a batch's tensors, to other devices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reduced = 0
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and ("reduce" in name):
            self.reduced += sum(_elements(arg) for arg in args[:2])
        device = (kwargs or {}).get("device")
        if name == "_to_copy" and device is not None and args[0].device != torch.device(device):
            self.moved += args[0].shape == (SIZE, 6)
        return func(*args, **(kwargs or {}))


def _elements(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() if value.is_floating_point() and value.numel() > 1 else 0
    return sum(map(_elements, value)) if isinstance(value, (list, tuple)) else 0


class Meter(Plugin):
    """Records, for each batch, how much was reduced over ranks and how often a tensor of it changed its device."""

    name = "meter"

    def __init__(self, count: Count) -> None:
        self.count = count
        self.reduced: list[int] = []
        self.moved: list[int] = []

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        self.reduced.append(self.count.reduced)
        self.moved.append(self.count.moved)
        self.count.reduced = self.count.moved = 0


@dataclass
class Run:
    """One training run of the contract."""

    options: Mapping[str, Any]
    """Trainer options that choose the accelerator."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further options."""
    batch_size: int = SIZE
    ranks: int = 1
    case: str = "plain"
    """What goes wrong: "raise", "stop", "none", "uneven" or "endless" (uneven, lengths unknown)."""
    plugins: tuple[str, ...] = ()


class Unlucky(Plugin):
    """On the last rank, in the third batch, does what the case says."""

    name = "unlucky"

    def __init__(self, case: str) -> None:
        self.case = case

    @hookimpl
    def before_backward(self, loop: Loop) -> None:
        if self.case == "raise" and loop.batch_idx == 2 and loop.world.rank == loop.world.size - 1:
            raise ValueError("rotten luck")

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        if self.case == "none" and loop.batch_idx == 2 and loop.world.rank == loop.world.size - 1:
            loop.loss = None

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if self.case == "stop" and loop.batch_idx == 2 and loop.world.rank == loop.world.size - 1:
            loop.stop("had enough")


def train(run: Run) -> dict[str, Any]:
    """Do ``run`` in this process, and tell what came of it."""
    module, watch, count = Blocks(), Watch(), Count()
    meter = Meter(count)
    plugins = [
        "-*",
        "lockstep",
        "shard_data",
        "set_epoch",
        *(() if "accelerator" in run.options else ("cpu",)),
        "validation",
        *run.plugins,
        watch,
        meter,
        Unlucky(run.case),
    ]
    trainer = Trainer(plugins, **{**run.options, **run.more})
    with count:
        result = trainer.fit(module, data_of(run), DataLoader(samples(7), batch_size=2))
    return {
        "weights": {name: value.detach().cpu() for name, value in module.state_dict().items()},
        "losses": torch.stack(watch.losses).tolist(),
        "norms": torch.stack(watch.norms).tolist(),
        "reduced": [amount > 0 for amount in meter.reduced],
        "moved": meter.moved,
        "device": str(trainer.loop.device) if trainer.loop else "",
        "status": (result.status, result.reason, result.global_step),
        "val": (result.metrics.get("val_loss"), result.metrics.get("seen")),
    }


def data_of(run: Run) -> Any:
    """What is trained on: the same for all ranks to share, or, uneven, five batches on rank 0 and four on each other."""
    if run.case not in ("uneven", "endless"):
        return DataLoader(samples(BATCHES * SIZE * run.ranks), batch_size=run.batch_size)
    own = list(DataLoader(samples(5 * SIZE), batch_size=SIZE))[: 5 if os.environ.get("RANK", "0") == "0" else 4]
    return own if run.case == "uneven" else Unsized(own)


class Unsized:
    """Batches whose number nobody knows."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def interrupted(run: Run, directory: str) -> dict[str, Any]:
    """Train two epochs with a stop and a resumption in between, inside the first epoch."""
    saving = {"checkpoint_dir": directory, "save_every": None, "enable_checkpointing": True}
    first = Run(
        run.options, {**run.more, **saving}, run.batch_size, run.ranks, "stop", ("checkpoint", "run_dir", "duration")
    )
    train(first)
    again = {**run.more, **saving, "resume": directory}
    return train(Run(run.options, again, run.batch_size, run.ranks, "plain", ("checkpoint", "run_dir", "duration")))
