"""Split a batch into pieces if it does not fit into memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import add_note, defined, describe, is_collated, needs_closure, refuse_closures
from lightloop_plugins._trial import is_out_of_memory
from lightloop_plugins.split_on_oom.pieces import REMEDY, Gradients, add_gradients, cut, remember, take_gradients


@dataclasses.dataclass
class Gathered:
    """What the pieces of a batch came to."""

    loss: Tensor
    """Their mean loss, a leaf: what others make of it says by what the gradients are to be multiplied."""
    gradients: Gradients
    """Their mean gradient, times ``scale``."""
    scale: Tensor
    """By what a precision plugin multiplies losses; exact to divide by."""


class SplitOnOOM(Plugin):
    """Split a batch that ran out of memory into 2, 4, 8 … pieces, whose mean gradient is that of the batch.

    Each attempt cuts the original batch anew, tensors along their first dimension and lists of samples by their items, and
    begins with the random numbers and the logged values with which the first one began. Its pieces go forward and backward one after another, each
    weighted by its samples, or by the ``weight`` that the training step reports. What was needed once is used from then
    on, until the fit ends. A loss that is no mean over samples, or a layer that looks at the whole batch (batch
    normalization), gives another gradient for pieces than for the whole.

    Where it cannot be known which samples are in a batch, memory that runs out is an error that asks for
    ``cut_batch(batch, pieces)``; a module that defines it cuts by itself.

    Attributes:
        pieces: into how many a batch is cut now.
    """

    name = "split_on_oom"
    before = ("lightning", "strategy", "precision", "toggle", "module_hooks")
    conflicts = ("tbptt",)
    state = ("pieces",)
    transient = ("_inside", "_gathered", "_rewind")

    on: bool = option(
        False, "Split batches into pieces when memory runs out, instead of failing.", flag="split_on_oom", switch=True
    )

    def validate(self) -> None:
        self._start()

    def _start(self) -> None:
        self.pieces = 1
        self._inside = False
        self._gathered: Gathered | None = None
        self._rewind: Callable[[], None] | None = None

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._start()
        if loop.world.size > 1:
            raise ValueError("split_on_oom works in one process: others would wait for gradients that never come")
        if "manual" in loop.step_arguments:
            raise ValueError(
                "split_on_oom cannot go backward for a training_step that optimizes by itself: leave one out"
            )
        refuse_closures(loop, "split_on_oom", "which replays the window as it was, uncut", needs_closure)

    @hookimpl
    def forward(self, loop: Loop) -> Any:
        assert loop.training_step is not None
        if loop.optimizer_idx is None:
            return None
        self._gathered, self._rewind = None, remember(loop)
        while True:
            try:
                output = self._in_pieces(loop) if self.pieces > 1 else loop.training_step(loop)
                return {"loss": None} if output is None else output  # None would be no answer, and have another asked
            except Exception as error:
                self._cut_finer(loop, error)
            self._rewind()

    @hookimpl(specname="backward", wrapper=True)
    def backward_again(self, loop: Loop) -> Generator[None, bool | None, bool | None]:
        if self._inside or self._gathered is not None:
            return (yield)
        before = take_gradients(loop)
        try:
            added = yield
        except Exception as error:
            take_gradients(loop)
            add_gradients(before)
            self._cut_finer(loop, error)
        else:
            add_gradients(before)
            return added
        assert self._rewind is not None
        self._rewind()
        loop.run_forward()
        if loop.loss is None:
            return False
        loop.hook.before_backward(loop=loop)
        return loop.hook.backward(loop=loop)

    @hookimpl
    def backward(self, loop: Loop) -> bool | None:
        gathered, self._gathered = self._gathered, None
        if self._inside or gathered is None:
            return None
        assert loop.loss is not None
        (factor,) = torch.autograd.grad(loop.loss, gathered.loss, loop.share)
        torch._foreach_mul_([gradient for _, gradient in gathered.gradients], factor / gathered.scale)
        add_gradients(gathered.gradients)
        return True

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._gathered = self._rewind = None

    def _cut_finer(self, loop: Loop, error: Exception) -> None:
        """Ask for twice as many pieces after ``error``, or let it go on if that is not what it is about, or no use."""
        if not is_out_of_memory(error):
            raise error
        size = self._most_pieces(loop, error)
        if self.pieces >= size:
            add_note(error, f"split_on_oom: even with this batch of {size} cut into {self.pieces} pieces")
            raise error
        self.pieces *= 2
        error.__traceback__ = None  # it holds what the attempt had on the device
        loop.output = loop.loss = None

    def _most_pieces(self, loop: Loop, error: Exception) -> int:
        """Into how many pieces the batch can be cut: as many as it has samples, or as its module makes of it."""
        size = loop.samples_in(loop.piece)
        if size is None and (own := defined(loop.module, "cut_batch")) is not None:
            return sum(1 for _ in own(loop.piece, 2 * self.pieces))
        if size is None:
            raise ValueError(
                f"memory ran out, and split_on_oom cannot know how many samples are in {describe(loop.piece)} "
                f"(at {loop.where()}). {REMEDY}"
            ) from error
        return size

    def _parts(self, loop: Loop) -> Iterable[Any]:
        own, batch = defined(loop.module, "cut_batch"), loop.piece
        if own is not None:
            return own(batch, self.pieces)  # type: ignore[no-any-return]
        size = loop.samples_in(batch)
        if size is None:
            raise ValueError(
                f"split_on_oom cannot know how many samples are in {describe(batch)} (at {loop.where()}). {REMEDY}"
            )
        return self._counted(loop, cut(batch, size, self.pieces, is_collated(loop.train_loader)))

    def _counted(self, loop: Loop, parts: Iterable[tuple[Any, int]]) -> Iterator[Any]:
        for part, size in parts:
            loop.set_samples(part, size)
            yield part

    def _weight(self, loop: Loop, weight: Any) -> Any:
        """What the piece counts for: what the training step reports, or its samples."""
        if weight is None and (weight := loop.samples_in(loop.piece)) is None:
            raise ValueError(
                f"split_on_oom cannot know how many samples are in a piece, {describe(loop.piece)} (at {loop.where()}): "
                "return {'loss': loss, 'weight': samples} from training_step, or define batch_size(batch) on the module"
            )
        return weight

    def _in_pieces(self, loop: Loop) -> Any:
        """Go through the piece in smaller ones, and return what the training step would have returned."""
        whole, seed, output, losses, weights = loop.piece, loop.share, None, [], []
        before, gathered = take_gradients(loop), []
        self._inside = True
        try:
            for loop.piece in self._parts(loop):
                output = loop.training_step(loop)  # type: ignore[misc]
                loss, weight = output, None
                if isinstance(output, Mapping):
                    loss, weight = output["loss"], output.get("weight")
                if loss is None:
                    continue
                weights.append(self._weight(loop, weight))
                losses.append(loss.detach() * weights[-1])
                loop.loss, loop.share = loss, torch.as_tensor(weights[-1]).to(loss).reshape(loss.shape)
                loop.hook.backward(loop=loop)
            if losses:
                scale = self._scale(loop, losses[0])
            gathered = take_gradients(loop)
        finally:
            self._inside = False
            loop.piece, loop.loss, loop.share = whole, None, seed
            take_gradients(loop)
            add_gradients(before)
        if not losses:
            return None
        total = sum(weights)
        for _, gradient in gathered:
            gradient.div_(total)
        mean = (torch.stack(losses).sum() / total).requires_grad_()
        self._gathered = Gathered(mean, gathered, scale)
        if not isinstance(output, Mapping):
            return mean
        return {**output, "loss": mean, **({"weight": total} if "weight" in output else {})}

    def _scale(self, loop: Loop, like: Tensor) -> Tensor:
        """By what going backward multiplies a loss, as a precision plugin may; found by letting it."""
        loop.loss, loop.share = torch.ones_like(like).requires_grad_(), None
        loop.hook.backward(loop=loop)
        assert loop.loss.grad is not None
        return loop.loss.grad
