"""What a plugin without declarations sees in ``before_step``, beside the gradient of a loop that is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightloop.hookspecs import hookimpl
from lightloop.host.plugin import Plugin
from lightloop.inputs.optimizers import parameters_of
from lightloop.loop import Loop
from lightloop.module import Module
from lightloop.testing.ranks import Outcome, run_ranks, values_of
from lightloop.trainer import Trainer

BATCHES = 5
"""How many batches each rank trains on: with windows of three, the second one is short."""
SCALE = 2.0**10
"""By what a loss in float16 is multiplied, here and there."""
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Case:
    """One way to train."""

    precision: Any
    optimizers: int
    accumulate: int
    weighted: bool
    cut: bool
    """Whether the epoch is broken off inside a window, whose last backward was then held; else, its length is known."""


class Look(Plugin):
    """Records the gradient that it sees before each step; the subclasses declare nothing and differ by their names."""

    def validate(self) -> None:
        self.seen: list[list[Tensor]] = []
        self.norms: list[Tensor] = []

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        """Take a copy, whole where it is sharded."""
        whole = [
            gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient for gradient in loop.gradients
        ]
        self.seen.append([gradient.detach().clone() for gradient in whole])
        self.norms.append(loop.grad_norm(2.0).clone())


LOOKS: list[type[Look]] = [
    type(name, (Look,), {"name": name, "__doc__": Look.__doc__}) for name in ("a_look", "m_look", "z_look")
]


class Cut(Plugin):
    """Breaks the epoch off."""

    name = "cut"

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        """After so many batches."""
        if loop.batch_idx == BATCHES - 1:
            loop.end_epoch("enough")


class Nets(Module):
    """As many networks as optimizers; of a batch each rank takes its part, and the weight that belongs to it."""

    def __init__(self, case: Case, lr: float) -> None:
        super().__init__()
        self.case, self.lr = case, lr
        generator = torch.Generator().manual_seed(0)
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(case.optimizers)
        )
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)

    def loss(self, x: Tensor, index: int) -> Tensor:
        """A loss that depends on the network of optimizer ``index`` alone."""
        return self.nets[index](x).float().square().mean() * (index + 1)  # type: ignore[no-any-return]

    def training_step(self, batch: tuple[Tensor, list[int]], optimizer_idx: int, loop: Loop) -> Any:
        """The loss of this rank's part."""
        samples, weights = batch
        loss = self.loss(samples[loop.world.rank], optimizer_idx)
        return {"loss": loss, "weight": weights[loop.world.rank]} if self.case.weighted else loss

    def configure_optimizers(self) -> list[Optimizer]:
        """SGD with momentum, for each network."""
        return [torch.optim.SGD(net.parameters(), lr=self.lr, momentum=0.5) for net in self.nets]


def data(ranks: int) -> list[tuple[Tensor, list[int]]]:
    """Batches with a part, and a weight, for each rank."""
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(BATCHES, ranks, 3, 4, generator=generator)
    return [(each, [1 + (3 * index + rank) % 4 for rank in range(ranks)]) for index, each in enumerate(samples)]


def by_hand(case: Case, lr: float, ranks: int, device: torch.device, around: Callable[[], Any]) -> list[list[Tensor]]:
    """The gradient of each step of a loop as one would write it, with the ranks one after another."""
    module = Nets(case, lr).to(device)
    optimizers = module.configure_optimizers()
    scaled = case.precision == "16-mixed"
    scalers = [torch.amp.GradScaler(device.type, SCALE, enabled=scaled) for _ in optimizers]
    batches = [(samples.to(device), weights) for samples, weights in data(ranks)]
    gradients = []
    for start in range(0, BATCHES, case.accumulate):
        window = batches[start : start + case.accumulate]
        planned = case.accumulate if case.cut else len(window)
        for index, (optimizer, scaler) in enumerate(zip(optimizers, scalers, strict=True)):
            total, count = [torch.zeros_like(parameter) for parameter in parameters_of(optimizer)], 0.0
            for rank in range(ranks):
                optimizer.zero_grad()
                for samples, weights in window:
                    weight = weights[rank] if case.weighted and (ranks > 1 or case.accumulate > 1) else 1
                    count += weight / ranks
                    with around():
                        loss = module.loss(samples[rank], index)
                    scaler.scale(loss).backward(torch.full_like(loss, weight / planned))  # type: ignore[no-untyped-call]
                for each, parameter in zip(total, parameters_of(optimizer), strict=True):
                    assert parameter.grad is not None
                    each += parameter.grad
            for each, parameter in zip(total, parameters_of(optimizer), strict=True):
                parameter.grad = each / ranks
            scaler.unscale_(optimizer)
            gradients.append([parameter.grad.mul_(planned / count).clone() for parameter in parameters_of(optimizer)])  # type: ignore[union-attr]
            scaler.step(optimizer)
            scaler.update()
    return gradients


class GradientContract:
    """A plugin without declarations, under any name, sees in ``before_step`` the gradient of a loop by hand.

    Subclass it as ``TestMine`` for a strategy or a precision of your own, and say how a Trainer chooses it. The loop by
    hand runs on the device of the run, with the samples of all ranks.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """Options of the Trainer that choose what is tested."""
    ranks: ClassVar[int] = 1
    """In how many processes it is run."""
    tolerance: ClassVar[float] = 1e-6
    """How far losses, gradients and weights may be from those of one process, absolutely."""
    timeout: ClassVar[float] = 120.0
    """How many seconds a run may take."""
    precisions: ClassVar[Sequence[Any]] = (32, "bf16-mixed", "16-mixed")
    """With which precisions; None is that of ``options``, for which ``around`` says in what the loop by hand runs forward."""

    def launch(self, function: Callable[..., Any], *arguments: Any) -> list[Outcome]:
        """Call ``function(*arguments)`` on each rank; override it for a launcher of its own."""
        return run_ranks(function, self.ranks, *arguments, timeout=self.timeout)

    sample: ClassVar[int] = 1
    """Every so many-th of the combinations is run; with 5, every two of their values still meet."""

    @classmethod
    def around(cls, precision: Any, device: torch.device) -> AbstractContextManager[Any]:
        """The context in which the loop by hand runs forward."""
        return torch.autocast(device.type, AUTOCAST[precision]) if precision in AUTOCAST else nullcontext()

    @classmethod
    def cases(cls) -> list[Case]:
        """Combinations of what makes the gradient of a step."""
        every = product(cls.precisions, (1, 2), (1, 3), (False, True), (False, True))
        return [Case(*each) for each in every][:: cls.sample]

    def test_a_plugin_without_declarations_sees_the_gradient_of_a_loop_by_hand(self) -> None:
        values_of(self.launch(compare, type(self)))


def compare(contract: type[GradientContract]) -> None:
    """Compare on this rank what plugins see with the loop by hand, in each case."""
    for case in contract.cases():
        compare_case(contract, case)


def compare_case(contract: type[GradientContract], case: Case) -> None:
    """Compare in one case.

    Raises:
        AssertionError: where a gradient, or its norm, is another one; it names case, plugin and step.
    """
    lr = (
        0.0 if contract.tolerance else 0.05
    )  # else the last digits would grow from step to step, and jump where forward rounds them
    options = {**contract.options, **({} if case.precision is None else {"precision": case.precision})}
    if case.precision == "16-mixed":
        options["precision_init_scale"] = SCALE
    looks = [look() for look in LOOKS]
    cut, times = ([Cut], 2) if case.cut else ([], 1)
    trainer = Trainer(
        ["-*", *options.pop("plugins", ()), *looks, *cut], accumulate_grad_batches=case.accumulate, **options
    )
    trainer.fit(Nets(case, lr), data(contract.ranks) * times)
    assert trainer.loop is not None
    device = trainer.loop.device
    wanted = by_hand(case, lr, contract.ranks, device, partial(contract.around, case.precision, device))
    for look in looks:
        assert len(look.seen) == len(wanted), f"{case}: {look.name} saw {len(look.seen)} steps for {len(wanted)}"
        norms = [torch.nn.utils.get_total_norm(gradients) for gradients in wanted]
        for step, (seen, gradients) in enumerate(zip(look.seen, wanted, strict=True)):
            close(seen, gradients, f"{case}: {look.name} at step {step}", atol=contract.tolerance)
        close(look.norms, norms, f"{case}: norms that {look.name} is told", rtol=1e-5, atol=contract.tolerance)


def close(found: Any, wanted: Any, where: str, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Compare; an error says ``where``."""
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, msg=lambda told: f"{where}: {told}")
