"""The loop's default answer to each operation: plain training, as in a loop written by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightloop.gradients import differentiate, total_norm
from lightloop.hookspecs import Hooks, hookimpl
from lightloop.host.manager import Manager
from lightloop.host.plugin import Plugin
from lightloop.inputs.data import with_is_last
from lightloop.inputs.optimizers import Setup, read_setup
from lightloop.inputs.signatures import defined
from lightloop.replay import Closure

if TYPE_CHECKING:
    from lightloop.evaluation import Evaluation
    from lightloop.loop import Loop


class Operations:
    """The loop's default answers, asked after all plugins; each takes all arguments, so it can be called directly."""

    @hookimpl
    def prepare_loader(self, loop: Loop, loader: Iterable[Any], stage: str) -> Iterable[Any]:
        return loader

    @hookimpl
    def configure_optimizers(self, loop: Loop) -> Setup:
        configure = defined(loop.module, "configure_optimizers")
        return read_setup(configure() if configure else None, loop.module)

    @hookimpl
    def epochs_remain(self, loop: Loop) -> bool:
        return loop.epoch < 1

    @hookimpl
    def epoch_batches(self, loop: Loop) -> float:
        return math.inf if loop.num_batches is None else loop.num_batches

    @hookimpl
    def epoch_steps(self, loop: Loop, epoch: int) -> float | None:
        return loop.hook.epoch_batches(loop=loop, epoch=epoch)

    @hookimpl
    def total_steps(self, loop: Loop) -> float | None:
        return loop.hook.epoch_steps(loop=loop, epoch=0)

    @hookimpl
    def read_batches(self, loop: Loop) -> Iterable[tuple[Any, bool]]:
        return with_is_last(loop.train_loader, loop.batch_idx, None, "the training data", loop.wrong_lengths)

    @hookimpl
    def move_batch(self, loop: Loop, batch: Any) -> Any:
        return batch

    @hookimpl
    def split_batch(self, loop: Loop) -> Sequence[Any]:
        return (loop.batch,)

    @hookimpl
    def select_optimizers(self, loop: Loop) -> Sequence[int | None]:
        return range(len(loop.windows)) or (None,)

    @hookimpl
    def hold_step(self, loop: Loop) -> bool:
        return False

    @hookimpl
    def plan_window(self, loop: Loop) -> int:
        return 1

    @hookimpl
    def forward(self, loop: Loop) -> Any:
        return loop.training_step(loop)  # type: ignore[misc]

    @hookimpl
    def backward(self, loop: Loop) -> bool:
        differentiate(loop.loss, loop.share, loop._shares)  # type: ignore[arg-type]
        return True

    @hookimpl
    def grad_norm(self, loop: Loop, norm_type: float) -> Tensor:
        return total_norm(loop.gradients, norm_type)

    @hookimpl
    def step(self, loop: Loop) -> bool:
        if loop.window.replays:
            loop.optimizer.step(Closure(loop, loop.optimizer))  # type: ignore[arg-type]
        else:
            loop.optimizer.step()
        return True

    @hookimpl
    def zero_grad(self, loop: Loop) -> bool:
        for group in loop.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        return True

    @hookimpl
    def may_stop(self, loop: Loop) -> bool:
        return True

    @hookimpl
    def evaluate_batch(self, loop: Loop, evaluation: Evaluation) -> Any:
        return evaluation.step(loop)


def manage(plugins: Sequence[Plugin], absent: Sequence[type[Plugin]] = ()) -> Manager:
    """The manager of live ``plugins`` of this loop; ``absent`` ones have a say in the order."""
    return Manager(plugins, Operations(), Hooks, absent)
