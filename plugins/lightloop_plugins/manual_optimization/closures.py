"""A user's closure, as an optimizer calls it: each time with all that comes before a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lightloop.toolkit import parameters_of

if TYPE_CHECKING:
    from lightloop_plugins.manual_optimization.helper import Manual


class Anew:
    """The gradient of the selected optimizer, evaluated anew by the user's closure at each call.

    The window is then what the closure goes backward through. After it, the gradient is reduced, unscaled and shown to
    plugins, as that of any step.
    """

    def __init__(self, manual: Manual, closure: Callable[[], Any]) -> None:
        self._manual, self._closure = manual, closure
        self._again = False

    def __call__(self) -> Any:
        loop, index = self._manual.loop, self._manual.loop.optimizer_idx
        assert index is not None
        loop.replaying, loop.again = self._again, True
        try:
            while loop.again:
                loop.again = False
                self._manual.empty(index)
                loop.hook.zero_grad(loop=loop)
                torch.clear_autocast_cache()  # weights that it has cast may have changed since
                with torch.enable_grad():
                    loss = self._closure()
                loop.select(index)
                loop.prepare_step()
        finally:
            loop.replaying, loop.again = False, None
        if loop.skip_step_reason is not None:
            raise RuntimeError(
                f"a plugin asked that the step is not taken ({loop.skip_step_reason}), and {type(loop.optimizer).__name__} is "
                "in the middle of it: it evaluates the loss several times a step, and cannot be called off between"
            )
        self._again = True
        return loss


class Left:
    """The gradients that a step has left behind, by which new ones are told from them."""

    def __init__(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        grads = [parameter.grad for parameter in parameters_of(optimizer)] if optimizer else []
        self._seen = [None if grad is None else (weakref.ref(grad), grad._version) for grad in grads]

    def differ(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether ``optimizer`` has a gradient now that was not left behind."""
        grads = [parameter.grad for parameter in parameters_of(optimizer)]
        seen = self._seen or [None] * len(grads)
        return any(
            grad is not None and (old is None or old[0]() is not grad or old[1] != grad._version)
            for grad, old in zip(grads, seen, strict=True)
        )
