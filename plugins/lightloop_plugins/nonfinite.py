"""Handle losses, gradients and parameters that are NaN or infinite."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from typing import Any, Literal

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import find_nonfinite, parameters_of, total_norm, warn

WATCHED = ("loss", "grad", "param")


class Nonfinite(Plugin):
    """Watch for values that are not finite, and act.

    The loss is looked at after forward, the gradients before the step, the parameters after it. On an event:

    * ``warn``: say so and go on.
    * ``skip_step``: the window's gradient is dropped, the step not taken.
    * ``drop_batch``: a loss leaves its batch out of the window, which goes on without it; a gradient that only shows
      when the window is whole skips the step.
    * ``rewind``: the batch or window is dropped, and module, optimizers and schedules go back to a copy that was taken
      at most ``keep_every`` steps before, when all parameters were finite; training goes on with the next data. Counters
      go on as well, and other plugins keep their state. The parameters are always watched, and a step that spoils one
      is undone at once and does not count.
    * ``stop``: the batch or window is dropped, and training asked to stop.

    Each look waits for the device, once per batch for the loss and once per step for the gradients, whose norm it
    shares with clipping, and for the parameters; ``nonfinite_async`` never waits. What one rank finds, all act on. A step
    that somebody has called off already, such as the loss scaler of ``16-mixed``, is no event. Events are warned of, and
    logged as ``nonfinite_events``, their number so far.
    """

    name = "nonfinite"
    tags = ("guards",)
    after = ("grad_norm",)
    before = ("clip",)
    conflicts = ("nonfinite_async",)
    disturbs = ("waiting",)
    state = ("events", "_in_a_row", "_dirty", "_good", "_steps")
    transient = ("_rewinding",)
    state_version = 2

    action: Literal["warn", "skip_step", "drop_batch", "rewind", "stop"] | None = option(
        None, "What to do if a value is NaN or infinite; None is off.", flag="nonfinite"
    )
    watch: Sequence[str] = option(("loss", "grad"), "What to check: any of 'loss', 'grad' and 'param'.", enables=False)
    limit: int | None = option(
        None, "Stop training after this many events with no clean step between them.", enables=False
    )
    keep_every: int = option(1, "Rewind: number of steps between two copies of the good state.", enables=False)

    def validate(self) -> None:
        if self.action is None:
            raise self.invalid("action", "one of warn, skip_step, drop_batch, rewind, stop")
        if isinstance(self.watch, str) or not self.watch or not set(self.watch) <= set(WATCHED):
            raise self.invalid("watch", f"a list of some of {', '.join(WATCHED)}")
        if "param" in self.watch and self.action in ("skip_step", "drop_batch"):
            raise self.invalid(
                "watch", f"without 'param', which shows after the step, when {self.action} comes too late"
            )
        for name in ("limit", "keep_every"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise self.invalid(name, "a whole number from 1")
        self._begin(1)

    def _begin(self, optimizers: int) -> None:
        self.events = 0
        self._in_a_row = [0] * optimizers
        self._dirty: set[int] = set()  # optimizers in whose open window there was an event
        self._good: list[Any] | None = None
        self._steps = 0  # applied since the copy was taken
        self._rewinding = False

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        self._begin(max(1, len(loop.windows)))
        watch = {*self.watch, *(["param"] if self.action == "rewind" else [])}
        for watched, hook in zip(WATCHED, ("after_forward", "before_step", "step"), strict=True):
            if watched not in watch and not (watched == "grad" and self.action == "skip_step"):
                loop.opt_out(self, hook)
        if self.action != "rewind":
            loop.opt_out(self, "before_batch", "after_batch", "after_epoch")

    @hookimpl
    def before_batch(self, loop: Loop) -> None:
        if self._good is None or self._steps >= self.keep_every:
            self._good, self._steps = copy.deepcopy([part.state_dict() for part in _parts(loop)]), 0

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        loss = loop.loss
        if loop.replaying or loop.optimizer_idx is None:
            return
        bad = loss is not None and not loss.isfinite().all()
        found = self._event(loop, f"the loss is {loss.item()}" if loss is not None and bad else None)
        if found and self.action not in ("warn", "skip_step"):
            loop.loss = None
            if not loop.held and not loop.window.contributions:  # the window closes empty, and no hook will tell
                self._dirty.discard(loop.optimizer_idx)

    @hookimpl
    def before_step(self, loop: Loop) -> None:
        found = loop.optimizer_idx in self._dirty and self.action in ("warn", "skip_step")
        if not found:
            bad = "grad" in self.watch and not loop.grad_norm(2.0).isfinite() and loop.skip_step_reason is None
            found = self._event(loop, find_nonfinite(loop, "gradient") if bad else None)
        if found and self.action != "warn":
            loop.skip_step("something in its window was not finite")

    @hookimpl(wrapper=True)
    def step(self, loop: Loop) -> Generator[None, bool | None, bool | None]:
        applied = yield
        parameters = [parameter.detach() for parameter in parameters_of(loop.optimizer)]
        bad = applied and not total_norm(parameters, 2.0).isfinite()
        found = self._event(loop, find_nonfinite(loop, "parameter") if bad else None)
        if found and self.action == "rewind":
            self._restore(loop)
            return False
        return applied

    @hookimpl
    def after_step(self, loop: Loop) -> None:
        index = loop.optimizer_idx or 0
        self._steps += 1
        if index not in self._dirty:
            self._in_a_row[index] = 0
        self._dirty.discard(index)

    @hookimpl
    def on_step_skipped(self, loop: Loop) -> None:
        self._dirty.discard(loop.optimizer_idx or 0)

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if not self._rewinding:
            if self._steps >= self.keep_every:
                self._good = None  # the next batch takes a new one; until then it would be in every checkpoint
            return
        self._restore(loop)
        current = loop.optimizer_idx
        for index, window in enumerate(loop.windows):
            loop.select(index)
            loop.hook.zero_grad(loop=loop)
            window.clear()
        if current is not None:
            loop.select(current)
        self._rewinding = False
        self._dirty.clear()

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        self.after_batch(loop)

    @hookimpl
    def teardown(self, loop: Loop) -> None:
        self._good = None

    def _event(self, loop: Loop, found: str | None) -> bool:
        """Count and tell what any rank has found; whether one has."""
        (found,) = loop.world.agree(f"{found} at {loop.where()}" if found else None)
        if found is None:
            return False
        index = loop.optimizer_idx or 0
        self.events += 1
        self._in_a_row[index] += 1
        self._dirty.add(index)
        self._rewinding = self.action == "rewind"
        loop.log("nonfinite_events", self.events, reduce="last")
        warn(f"nonfinite: {found} (counted from 0); what is done: {self.action}")
        if self.action == "stop":
            loop.stop(f"{found} (nonfinite)")
        elif self.limit is not None and self._in_a_row[index] >= self.limit:
            loop.stop(f"{self.limit} values in a row were not finite, the last: {found} (nonfinite_limit)")
        return True

    def _restore(self, loop: Loop) -> None:
        for part, state in zip(_parts(loop), copy.deepcopy(self._good or []), strict=True):
            part.load_state_dict(state)


def _parts(loop: Loop) -> list[Any]:
    return [loop.module, *loop.optimizers, *(schedule.scheduler for schedule in loop.schedules)]
