"""Replay a window: run forward and backward again, for an optimizer's closure or for a plugin before a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightloop.inputs.optimizers import parameters_of, searches_line, takes_closure

if TYPE_CHECKING:
    from lightloop.loop import Loop

PIECE = ("batch", "batch_idx", "is_last_batch", "piece", "piece_idx", "pieces", "held", "share")
"""The attributes of the loop with which a piece goes forward and backward."""
CONTEXT = (*PIECE, "output", "loss", "weight", "replaying", "again")
"""Those that a replay changes."""


def remember(loop: Loop) -> None:
    """Keep what the piece that just went backward needs to be replayed, and its share in the loss of the window.

    The loop does so after each ``backward`` where windows are kept. A plugin that goes backward at another place, as one
    that cuts a piece finer does, calls it there.
    """
    loop.window.replays.append((_capture(loop, PIECE), _share(loop)))


class Closure:
    """The closure of an optimizer: it recomputes loss and gradient of the open window at the current parameters.

    Each call evaluates anew. Only a first call that comes before the optimizer has changed anything is answered with what the
    window has gathered: it is the same. What is looked at are the parameters of the optimizer and their gradients (but what
    is done behind torch's back, by ``parameter.data``), and the attributes of the modules, such as the momentum of
    statistics.

    A plugin that answers ``step`` makes one for the optimizer that it calls.

    Args:
        loop: the run, whose window is about to close.
        optimizer: the one that is given the closure.

    Raises:
        RuntimeError: if the batches of the window were not kept.
    """

    def __init__(self, loop: Loop, optimizer: Optimizer) -> None:
        _check_kept(loop)
        self._loop, self._optimizer = loop, optimizer
        self._gathered: list[Any] | None = self._state()
        self._attributes = _attributes(loop.module)

    def __call__(self) -> Tensor:
        """The loss; its gradient is then that of the parameters."""
        loop = self._loop
        unchanged, self._gathered = self._gathered == self._state(), None
        attributes, self._attributes = self._attributes, []
        if unchanged and _are_same(attributes, _attributes(loop.module)):
            return _mean(loop, [share for _, share in loop.window.replays])
        with torch.enable_grad():
            loss = replay(loop)
        if loop.skip_step_reason is not None:
            raise RuntimeError(
                f"a plugin asked that the step is not taken ({loop.skip_step_reason}), and {type(self._optimizer).__name__} is in "
                "the middle of it: it evaluates the loss several times a step, and cannot be called off between"
            )
        return loss

    def of(self, optimizer: Optimizer) -> tuple[Closure, ...]:
        """The arguments of the step of an optimizer that steps beside others."""
        return (Closure(self._loop, optimizer),) if takes_closure(optimizer) else ()

    def _state(self) -> list[Any]:
        """What is another as soon as a parameter or gradient is."""
        pairs = [(parameter, parameter.grad) for parameter in parameters_of(self._optimizer)]
        return [(each._version, id(grad), grad is not None and grad._version) for each, grad in pairs]


def _attributes(module: nn.Module) -> list[Any]:
    return [value for part in module.modules() for value in vars(part).values()]


def _are_same(values: list[Any], others: list[Any]) -> bool:
    changed = [pair for pair in zip(values, others, strict=False) if pair[0] is not pair[1]]
    return len(values) == len(others) and all(
        type(a) is type(b) and type(a) in (int, float, str) and a == b for a, b in changed
    )


def replay(loop: Loop) -> Tensor:
    """Recompute the gradient of the open window at the current parameters.

    The gradients are dropped, each piece goes forward and backward again, and what comes before a step comes again:
    ``reduce_gradients``, ``unscale_gradients``, the weights, ``before_step``. A line search is spared the last, for it
    must have the gradient of its loss as it is. Meanwhile ``loop.replaying`` is True, and nothing is logged.
    ``loop.skip_step_reason`` then says whether a plugin asked that no step is taken.

    Returns:
        The mean loss over the window, on all ranks.
    """
    if loop.no_replay is not None:
        raise ValueError(loop.no_replay)
    _check_kept(loop)
    now = _capture(loop, CONTEXT)
    loop.replaying = loop.again = True
    try:
        while loop.again:
            loop.again = False
            loop.hook.zero_grad(loop=loop)
            losses = [_run(loop, piece) for piece, _ in loop.window.replays]
            loop.prepare_step(show=not searches_line(loop.optimizer))
    finally:
        _restore(loop, CONTEXT, now)
    return _mean(loop, losses)


def _check_kept(loop: Loop) -> None:
    if not loop.window.replays:
        raise RuntimeError("there is nothing to replay: call loop.keep_windows() in before_fit")


def _run(loop: Loop, piece: tuple[Any, ...]) -> Tensor:
    _restore(loop, PIECE, piece)
    loop.run_forward()
    if loop.loss is None:
        raise ValueError("training_step gave a loss at first and None when it was run again")
    loop.hook.backward(loop=loop)
    return _share(loop)


def _share(loop: Loop) -> Tensor:
    assert loop.loss is not None
    return loop.loss.detach() if loop.share is None else loop.loss.detach() * loop.share


def _mean(loop: Loop, losses: list[Tensor]) -> Tensor:
    """The mean over the window, for which all ranks decide alike."""
    return loop.world.reduce(torch.stack(losses).sum() * loop.window.correction(loop.world), "mean")


def _capture(loop: Loop, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(loop, name) for name in names)


def _restore(loop: Loop, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(loop, name, value)


def refuse_closures(loop: Loop, what: str, why: str, among: Callable[[Any], bool]) -> None:
    """Refuse optimizers that evaluate the window again where ``what`` does not go with it.

    Args:
        loop: the run; a plugin calls this in ``before_fit``.
        what: the option that is refused, as the user writes it.
        why: the reason, as what is said of the optimizer, and the remedy.
        among: ``searches_line``: those that search along a line are meant, such as LBFGS; ``needs_closure``: all of them.
            Which of those that merely take a closure call it again shows in their step, and is an error then.
    """
    text = "{} cannot be had with {}, " + why
    for optimizer in loop.optimizers:
        if among(optimizer):
            raise ValueError(text.format(what, type(optimizer).__name__))
    if among is not searches_line:
        loop.no_replay = text.format(what, "an optimizer that evaluates the loss several times a step")
