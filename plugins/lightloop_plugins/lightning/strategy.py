"""``trainer.strategy`` as modules and callbacks of Lightning expect to find it."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from lightloop import Loop
from lightloop_plugins.lightning.parts import PACKAGES


class Strategy:
    """What of ``trainer.strategy`` and ``trainer.precision_plugin`` is used by modules and callbacks."""

    def __init__(self, loop: Loop, plugin: Any) -> None:
        self._loop, self._plugin = loop, plugin
        self._wrapped: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        world = {"world_size": "size", "global_rank": "rank", "local_rank": "local_rank", "is_global_zero": "is_main"}
        if name in world:
            return getattr(self._loop.world, world[name])
        raise AttributeError(f"trainer.strategy.{name} of Lightning is not carried by Lightloop")

    @property
    def root_device(self) -> torch.device:
        """Where batches go."""
        return self._loop.device

    @property
    def lightning_module(self) -> Any:
        """The module of the run."""
        return self._loop.module

    model = lightning_module

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers, as torch's own."""
        return self._loop.optimizers

    @property
    def _lightning_optimizers(self) -> list[Any]:
        """The optimizers in Lightning's wrapper, for ``self.optimizers()``; made once."""
        if len(self._wrapped) != len(self._loop.optimizers):
            modules = (sys.modules.get(f"{package}.core.optimizer") for package in PACKAGES)
            wrapper = next(module.LightningOptimizer for module in modules if module)
            self._wrapped = [wrapper._to_lightning_optimizer(each, self) for each in self._loop.optimizers]
        return self._wrapped

    def optimizer_step(self, optimizer: Any, closure: Any = None, **more: Any) -> Any:
        """Step; what plugins do around a step is done, since they see it."""
        return optimizer.step(closure, **more)

    def backward(self, loss: Tensor, optimizer: Any = None, *arguments: Any, **named: Any) -> None:
        """What ``self.manual_backward`` calls."""
        self._plugin.manual_backward(self._loop, loss, *arguments, **named)

    def clip_gradients(self, optimizer: Any, clip_val: float = 0.0, gradient_clip_algorithm: str = "norm") -> None:
        """Clip now; nothing is done where ``clip_val`` is 0."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if clip_val > 0 and str(getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm)) == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip_val)
        elif clip_val > 0:
            torch.nn.utils.clip_grad_norm_(parameters, clip_val)

    def reduce(self, value: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """``value`` combined over all ranks; what is no tensor as it is."""
        op = str(reduce_op).lower().rpartition(".")[2].replace("avg", "mean")
        return self._loop.world.reduce(value, op) if isinstance(value, Tensor) else value  # type: ignore[arg-type]

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """What all ranks decide together: whether all, or any, of them say so."""
        votes = [bool(vote) for vote in self._loop.world.gather(bool(decision))]
        return min(votes) if all else max(votes)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The ``value`` of rank ``src``."""
        return self._loop.world.broadcast(value, src)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        self._loop.world.barrier()

    def all_gather(self, value: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The values of all ranks, stacked; in one process the value itself."""
        if self._loop.world.size == 1:
            return value
        if sync_grads:
            raise NotImplementedError("all_gather(sync_grads=True) is not carried: no gradient goes through it here")
        return torch.stack(self._loop.world.gather(value.detach()))
