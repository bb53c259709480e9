"""The contract of accelerators, devices and strategies alike, as tests that anybody's can inherit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from lightloop.hookspecs import hookimpl
from lightloop.loop import Loop
from lightloop.module import Module
from lightloop.plugin import Plugin
from lightloop.testing.ranks import Outcome, run_ranks, values_of
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
    after = ("strategy", "precision")
    before = ("clip",)

    def check(self) -> None:
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
    meter, rank = Meter(count), int(os.environ.get("RANK", "0"))
    plugins = [
        "-*",
        "in_step",
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
    data: Any = DataLoader(samples(BATCHES * SIZE * run.ranks), batch_size=run.batch_size)
    if run.case in ("uneven", "endless"):
        own = list(DataLoader(samples(5 * SIZE), batch_size=SIZE))[: 5 if rank == 0 else 4]
        data = own if run.case == "uneven" else Unsized(own)
    with count:
        result = trainer.fit(module, data, DataLoader(samples(7), batch_size=2))
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


class AcceleratorContract:
    """Tests that every accelerator passes. Subclass it as ``TestMine``, and say how a Trainer chooses it.

    The reference of each row is one process on the CPU that trains on the same global batches.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """Options of the Trainer that choose the accelerator."""
    ranks: ClassVar[int] = 1
    """In how many processes it is run."""
    tolerance: ClassVar[float] = 1e-6
    """How far losses, norms and weights may be from those of one process, absolutely."""
    exact_resume: ClassVar[bool] = True
    """Whether a resumed run ends bit-equal to one that was not stopped; else, within the tolerance."""
    reduces: ClassVar[bool] = True
    """Whether gradients are reduced by collectives of torch.distributed, which can be counted."""
    timeout: ClassVar[float] = 120.0
    """How many seconds a run may take."""
    patience: ClassVar[float] = 60.0
    """How many seconds a rank waits for the others, as ``options`` say; what ends sooner has not waited."""
    first_error: ClassVar[bool] = True
    """Whether ranks that end because of another one say what its error was."""

    def launch(self, function: Callable[..., Any], *arguments: Any) -> list[Outcome]:
        """Call ``function(*arguments)`` on each rank; override it for a launcher of its own."""
        return run_ranks(function, self.ranks, *arguments, timeout=self.timeout)

    def run(self, case: str = "plain", **more: Any) -> list[Outcome]:
        """Train on each rank."""
        return self.launch(train, Run(self.options, more, SIZE, self.ranks, case, ("accumulate", "duration")))

    def alone(self, **more: Any) -> dict[str, Any]:
        """Train in this process alone, on the CPU, with batches as large as those of all ranks together."""
        return train(Run({"strategy": False}, more, SIZE * self.ranks, self.ranks))

    def close(self, found: Any, wanted: Any, exact: bool = False) -> None:
        """Compare numbers, or weights by name."""
        torch.testing.assert_close(found, wanted, rtol=0, atol=0 if exact else self.tolerance)

    def test_losses_and_weights_are_those_of_one_process(self) -> None:
        ranks, alone = values_of(self.run(max_epochs=2)), self.alone(max_epochs=2)
        for each in ranks:
            self.close(each["weights"], ranks[0]["weights"], exact=True)
            self.close(each["weights"], alone["weights"])
        losses = torch.tensor([each["losses"] for each in ranks]).mean(0)
        self.close(losses, torch.tensor(alone["losses"]))

    def test_held_steps_do_not_reduce(self) -> None:
        ranks, alone = values_of(self.run(accumulate_grad_batches=4)), self.alone(accumulate_grad_batches=4)
        for each in ranks:
            assert each["status"] == ("finished", None, 3)
            self.close(each["weights"], alone["weights"])
            if self.reduces and self.ranks > 1:
                assert each["reduced"] == [False, False, False, True] * 2 + [False, True]

    def test_the_norm_is_that_of_the_whole_gradient_and_clips(self) -> None:
        limit = sorted(self.alone()["norms"])[BATCHES // 2]  # half of the steps are clipped
        ranks, alone = values_of(self.run(gradient_clip_val=limit)), self.alone(gradient_clip_val=limit)
        for each in ranks:
            self.close(torch.tensor(each["norms"]), torch.tensor(alone["norms"]))
            self.close(each["weights"], alone["weights"])

    def test_a_batch_changes_its_device_once(self) -> None:
        for each in values_of(self.run()):
            assert each["moved"] == [int(each["device"] != "cpu")] * BATCHES

    def test_evaluation_counts_each_sample_once(self) -> None:
        for each in values_of(self.run()):
            self.close(torch.tensor(each["val"]), torch.tensor(self.alone()["val"]))

    def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(self, tmp_path: Path) -> None:
        whole = values_of(self.run(max_epochs=2))
        run = Run(self.options, {"max_epochs": 2}, SIZE, self.ranks)
        for each, other in zip(values_of(self.launch(interrupted, run, str(tmp_path))), whole, strict=True):
            self.close(each["weights"], other["weights"], exact=self.exact_resume)

    def test_an_error_on_one_rank_ends_all_of_them(self) -> None:
        outcomes = self.run("raise")
        assert max(outcome.seconds for outcome in outcomes) < self.patience
        assert outcomes[-1].error is not None
        assert outcomes[-1].error.startswith("ValueError: rotten luck")
        for outcome in outcomes[:-1]:
            assert outcome.error is not None
            assert outcome.status not in (0, None)
            if self.first_error:
                assert f"rank {self.ranks - 1}: ValueError: rotten luck" in outcome.error, outcome.error

    def test_a_request_to_stop_on_one_rank_stops_all_of_them(self) -> None:
        for each in values_of(self.run("stop")):
            assert each["status"] == ("stopped", "had enough", 3)

    def test_no_loss_on_one_rank_is_an_error_on_all_or_skipped_by_all(self) -> None:
        if self.ranks == 1:
            assert values_of(self.run("none"))[0]["status"] == ("finished", None, BATCHES - 1)
            return
        outcomes = self.run("none")
        assert outcomes[-1].error is not None
        assert "each must train on each batch" in outcomes[-1].error
        assert all(outcome.error is not None and outcome.status not in (0, None) for outcome in outcomes)
        ranks = values_of(self.run("none", skip_together=True))
        for each in ranks:
            assert each["status"] == ("finished", None, BATCHES - 1)
            self.close(each["weights"], ranks[0]["weights"], exact=True)

    def test_ranks_with_other_numbers_of_batches_end_together(self) -> None:
        least = 5 if self.ranks == 1 else 4
        for case in ("uneven", "endless"):
            for each in values_of(self.run(case, accumulate_grad_batches=2)):
                assert each["status"] == ("finished", None, (least + 1) // 2)
                assert len(each["losses"]) == least
