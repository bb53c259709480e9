"""The helper for manual optimization, and the tracking of the user's own steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightloop import Loop
from lightloop.toolkit import context, frozen, needs_closure, parameters_of, searches_line, takes_closure
from lightloop_plugins.manual_optimization.closures import Anew, Left


class Manual:
    """The helper that a manually optimizing training_step gets as its argument ``manual``."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._holds = [False] * len(loop.optimizers)
        self._counted: set[int] = set()
        self._round: set[int] = set()
        self._round_step = 0
        self._inside = 0
        """How deep in steps we are: those that the loop takes itself, or that one step calls, are not for us to see."""
        self._applied = True
        self._left = [Left() for _ in loop.optimizers]

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None) -> None:
        """Add the gradient of ``loss`` to the window of ``optimizer``, scaled as precision asks.

        The window's gradient is the mean over its batches; several losses of one batch add up. A plain
        ``loss.backward()`` works as well; its gradient is then stepped with just as it is.
        """
        loop = self.loop
        index = self._index(optimizer)
        loop.select(index)
        window = loop.window
        loop.loss, loop.weight = loss, None
        loop.share = None if window.planned == 1 else torch.full_like(loss, 1 / window.planned, requires_grad=False)
        loop.hook.before_backward(loop=loop)
        if loop.hook.backward(loop=loop):
            window.add(0 if index in self._counted else 1, False)
            self._counted.add(index)
        loop.hook.after_backward(loop=loop)
        loop.optimizer_idx = None

    def should_step(self, optimizer: Optimizer | None = None) -> bool:
        """Whether the window of ``optimizer`` closes with this batch, as accumulate_grad_batches says."""
        return not self._holds[self._index(optimizer)]

    def step(self, optimizer: Optimizer | None = None) -> None:
        """Step ``optimizer`` just as the loop does, with all that plugins do around it, and drop its gradients."""
        loop = self.loop
        loop.select(self._index(optimizer))
        if needs_closure(loop.optimizer):
            raise TypeError(f"{type(loop.optimizer).__name__} needs a closure: call optimizer.step(closure) instead")
        if not loop.window.contributions:
            loop.window.add(loop.window.planned, False)  # gradients of a plain backward: as they are
        loop.close_window(self._next_step())
        loop.optimizer_idx = None
        torch.clear_autocast_cache()  # it holds the weights of before, which the rest of training_step would go on with

    @context
    def toggled(self, optimizer: Optimizer) -> Iterator[None]:
        """Let the parameters that only other optimizers have require no gradient meanwhile."""
        own = set(parameters_of(optimizer))
        with frozen(p for other in self.loop.optimizers for p in parameters_of(other) if p not in own):
            yield

    def begin_piece(self) -> None:
        """Ask for each optimizer whether its window stays open; forget the piece before."""
        loop = self.loop
        self._counted, self._round, self._inside = set(), set(), 0
        for index in range(len(loop.optimizers)):
            loop.select(index)
            loop.window.batches += loop.piece_idx == 0
            self._holds[index] = bool(loop.hook.hold_step(loop=loop))
            if not loop.window.contributions:
                loop.window.planned = loop.hook.plan_window(loop=loop) if self._holds[index] else 1  # type: ignore[assignment]
        loop.held, loop.optimizer_idx = bool(self._holds) and all(self._holds), None

    def before_raw_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Do what comes before each step; called by torch when the user steps."""
        self._inside += 1
        if self._inside > 1:
            return None
        loop = self.loop
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        index = self._index(optimizer)
        anew = closure is not None and takes_closure(optimizer) and not searches_line(optimizer)
        if anew:
            args, kwargs = args[:1], {**kwargs, "closure": Anew(self, closure)}
        elif closure is not None and not needs_closure(optimizer):  # its gradients have to be there before the step
            loss = closure()
            args, kwargs = args[:1], {**kwargs, "closure": lambda: loss}
        loop.select(index)
        if not anew or loop.window.contributions or self._left[index].differ(optimizer):
            self._applied = loop.prepare_step()
            if not self._applied and anew:
                kwargs["closure"]()
            elif not self._applied:  # a step without gradients changes nothing
                optimizer.zero_grad()
        self._applied |= anew
        return args, kwargs

    def after_raw_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Count the step and tell of it; called by torch when the user has stepped."""
        self._inside -= 1
        if not self._inside:
            loop = self.loop
            loop.select(self._index(optimizer))
            loop.conclude_step(self._applied, self._next_step())
            gradients = [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
            loop.window.spent = [(weakref.ref(gradient), gradient._version) for gradient in gradients]
            loop.window.clear()
            self._left[loop.optimizer_idx or 0] = Left(optimizer)
            loop.optimizer_idx = None
            torch.clear_autocast_cache()

    def empty(self, index: int) -> None:
        """Let the window of an optimizer be as if nothing had gone backward in it."""
        window = self.loop.windows[index]
        batches = window.batches
        window.clear()
        window.batches = batches
        self._counted.discard(index)

    @context
    def unseen(self) -> Iterator[None]:
        """Take no notice of steps meanwhile: the loop itself takes them."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def _next_step(self) -> int:
        index = self.loop.optimizer_idx
        assert index is not None
        if not self._round or index in self._round:
            self._round, self._round_step = set(), self.loop.global_step + 1
        self._round.add(index)
        return self._round_step

    def _index(self, optimizer: Optimizer | None) -> int:
        optimizers = self.loop.optimizers
        if optimizer is None and len(optimizers) == 1:
            return 0
        for index, own in enumerate(optimizers):
            if own is optimizer:
                return index
        found = "which of them is meant" if optimizer is None else f"one of them, not {type(optimizer).__name__}"
        raise ValueError(f"configure_optimizers returned {len(optimizers)} optimizers; say {found}")
