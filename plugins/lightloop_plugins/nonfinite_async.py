"""Keep non-finite gradients away from the parameters, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import warn


class NonfiniteAsync(Plugin):
    """Check the norm of the gradients, and act on it, on their device.

    What it promises, on an event, which is a gradient norm of NaN or infinity:

    * ``zero``: the gradients of the step are replaced by zeros on all ranks, so that nothing of them reaches a
      parameter. The step is still taken and counted, since nobody knows yet: momentum goes on moving and weight decay
      decaying. (``nonfinite`` calls the step off altogether, and waits for the device to know.)
    * ``stop``: the same, and training is asked to stop when the event becomes known.
    * ``warn``: the gradients are left as they are.

    Every ``every`` windows the number of events is sent to the host, and looked at on arrival, at a later step: an event
    is warned of, and stops training, between 1 and some more than ``every`` steps after it happened, or when the run is
    over. The device is not waited for until then, save one that cannot be asked how far it is (XLA), once per look.
    ``nonfinite_events``, the number so far, is logged at each step. The norm is shared with clipping.
    """

    name = "nonfinite_async"
    tags = ("guards",)
    after = ("grad_norm",)
    before = ("clip",)
    state = ("_counts", "_known", "_windows", "_sent")
    state_version = 2

    action: Literal["warn", "zero", "stop"] | None = option(
        None,
        "What to do if gradients are NaN or infinite, without waiting for the device; None is off.",
        flag="nonfinite_async",
    )
    limit: int | None = option(None, "Stop training after this many events in consecutive windows.", enables=False)
    every: int = option(50, "Number of windows between two reads of the event count.", enables=False)

    def validate(self) -> None:
        if self.action is None:
            raise self.invalid("action", "one of warn, zero, stop")
        for name in ("limit", "every"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise self.invalid(name, "a whole number from 1")
        self._begin()

    def _begin(self) -> None:
        self._counts: Tensor | None = None
        """Events in all, in a row until now, and the most in a row, on the device."""
        self._windows = 0
        self._sent: tuple[Tensor, torch.Event | None] | None = None
        self._known = 0

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._begin()

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        norm = loop.grad_norm(2.0)
        bad = loop.world.reduce((~norm.isfinite()).to(torch.int64), "max")
        counts = torch.zeros(3, dtype=torch.int64) if self._counts is None else self._counts
        events, in_a_row, most = counts.to(bad.device, non_blocking=True).unbind()
        in_a_row = (in_a_row + 1) * bad
        self._counts = torch.stack([events + bad, in_a_row, torch.maximum(most, in_a_row)])
        loop.log("nonfinite_events", self._counts[0], reduce="last")
        if self.action != "warn":
            for gradient in loop.gradients:
                values = gradient._values() if gradient.is_sparse else gradient
                values.masked_fill_(bad.to(values.device, torch.bool), 0)
        self._look(loop)

    def _look(self, loop: Loop) -> None:
        self._windows += 1
        if self._sent is not None:
            counts, arrived = self._sent
            if arrived is None or arrived.query():
                self._sent = None
                self._tell(loop, *counts.tolist())
        elif self._windows % self.every == 0 and self._counts is not None:
            self._sent = self._counts.to("cpu", non_blocking=True), _event_on(self._counts.device)

    def _tell(self, loop: Loop, events: int, in_a_row: int, most: int) -> None:
        if events > self._known:
            found = f"{events - self._known} of the last steps had gradients of NaN or infinity"
            self._known = events
            warn(f"nonfinite_async: {found}; what was done: {self.action}")
            if self.action == "stop":
                loop.stop(f"{found} (nonfinite_async)")
            elif self.limit is not None and most >= self.limit:
                loop.stop(f"{most} steps in a row had gradients of NaN or infinity (nonfinite_async_limit)")

    def state_dict(self) -> dict[str, Any]:
        sent = None if self._sent is None else self._sent[0]
        return {"counts": self._counts, "known": self._known, "windows": self._windows, "sent": sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._counts, self._known, self._windows = state["counts"], state["known"], state["windows"]
        self._sent = None if state["sent"] is None else (state["sent"], None)

    @hookimpl
    def after_fit(self, loop: Loop) -> None:
        if self._counts is not None and loop.status != "failed":
            self._tell(loop, *self._counts.tolist())

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._sent = None


def _event_on(device: torch.device) -> torch.Event | None:
    """A mark in the device's queue that can be asked whether it has been passed; None where there is no such thing."""
    try:
        event = torch.Event(device)
        event.record()
    except RuntimeError:
        return None
    return event
