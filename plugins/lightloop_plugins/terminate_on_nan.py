"""Raise an error at the first value that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import find_nonfinite, parameters_of, total_norm

CHECKS = ("loss", "grad", "param")


class TerminateOnNan(Plugin):
    """Raise ValueError at the first NaN or infinity, with its epoch, batch and parameter.

    The loss is checked before backward, the gradients before the step, which is then not taken, and the parameters
    that it changes after it. Gradients of a step that somebody has called off already, such as the loss scaler of
    ``16-mixed``, are not checked. Each check waits for the device; that of the gradients shares the norm with clipping.
    All ranks raise together.
    """

    name = "terminate_on_nan"
    tags = ("guards",)
    after = ("grad_norm", "nonfinite")
    before = ("clip",)
    disturbs = ("waiting",)

    on: bool = option(
        False, "Raise an error if a loss, gradient or parameter is NaN or infinite.", flag="terminate_on_nan",
        switch=True,
    )  # fmt: skip
    checks: Sequence[str] = option(CHECKS, "What to check: any of 'loss', 'grad' and 'param'.", enables=False)

    def validate(self) -> None:
        if isinstance(self.checks, str) or not self.checks or not set(self.checks) <= set(CHECKS):
            raise self.invalid("checks", f"a list of some of {', '.join(CHECKS)}")

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        for check, hook in zip(CHECKS, ("after_forward", "before_step", "after_step"), strict=True):
            if check not in self.checks:
                loop.opt_out(self, hook)

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        loss = 0.0 if loop.loss is None else loop.loss.item()
        if loop.world.size > 1 or not math.isfinite(loss):
            self._end(loop, None if math.isfinite(loss) else f"the loss is {loss}")

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        bad = not math.isfinite(loop.grad_norm(2.0).item()) and loop.skip_step_reason is None
        self._end(loop, find_nonfinite(loop, "gradient") if bad else None)

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        norm = total_norm([parameter.detach() for parameter in parameters_of(loop.optimizer)], 2.0)
        bad = not math.isfinite(norm.item())
        found = find_nonfinite(loop, "parameter") if bad else None
        self._end(loop, f"after the step, {found}" if found else None)

    def _end(self, loop: Loop, found: str | None) -> None:
        (found,) = loop.world.agree(f"{found} at {loop.where()}" if found else None)
        if found:
            raise ValueError(f"terminate_on_nan: {found} (epochs and batches counted from 0)")
