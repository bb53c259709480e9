"""The training loop, in the order in which it happens.

It does nothing by itself but emit the events of :class:`lightloop.Hooks`; every feature is a plugin, and what happens
where no plugin answers is in ``operations.py``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightloop.edits import blame_for_loss, check_edits
from lightloop.gradients import Weight, scale_, share_of
from lightloop.inputs.optimizers import Setup, takes_closure
from lightloop.inputs.signatures import bind, takes
from lightloop.inputs.steps import read_output
from lightloop.replay import remember
from lightloop.state import State
from lightloop.window import windows_for


class Loop(State):
    """One run of training; its state, counters and requests are those of :class:`State`."""

    def fit(self) -> None:
        """Train epoch by epoch, until no epoch remains or a stop request takes effect."""
        hook = self.hook
        self.prepare_fit()
        hook.before_fit(loop=self)
        while not self.should_stop() and hook.epochs_remain(loop=self):
            done, self.epoch_finished, self.epoch_metrics = self.total_batches - self.batch_idx, False, {}
            tried = -1 if self.batch_idx else self.global_step + self.skipped_steps
            hook.before_epoch(loop=self)
            for self.batch, self.is_last_batch in hook.read_batches(loop=self):  # type: ignore[union-attr]
                self.train_batch()
                ends = (self.asked or self.world.size > 1) and (self.should_stop() or self.end_epoch_reason)
                self.epoch_finished = self.is_last_batch or self.end_epoch_reason is not None
                if not self.epoch_finished:
                    hook.between_batches(loop=self)
                if ends:
                    break
            else:
                self.epoch_finished = True
            self._say_if_idle(self.total_batches - done, tried)
            self.close_open_windows()
            self.fold_metrics()
            hook.after_epoch(loop=self)
            if self.stepped:
                self.metrics.step = {}
            self._stop_if_empty(self.total_batches - done)
            self.end_epoch_reason = None
            if self.epoch_finished:
                self.epoch, self.batch_idx = self.epoch + 1, 0
                self.should_stop()
                hook.between_batches(loop=self)
        self.status = "interrupted" if self.interrupt_reason else "stopped" if self.stop_reason else "finished"
        if self.interrupt_reason:
            hook.on_interrupt(loop=self)

    def train_batch(self) -> None:
        """Train on one batch: forward, backward and, where its window closes, a step."""
        hook = self.hook
        self.stepped = False
        self.skip_batch_reason = None if self.batch is not None else "the loader gave None"
        self.batch = self.piece = hook.move_batch(loop=self, batch=self.batch)
        hook.before_batch(loop=self)
        if self.batch is None:
            self.skip_batch("a plugin took it away")
        self.pieces = () if self.skip_batch_reason else hook.split_batch(loop=self)  # type: ignore[assignment]
        for self.piece_idx, self.piece in enumerate(self.pieces):
            if self.skip_batch_reason:
                break
            step = self.global_step + 1
            for self.optimizer_idx in hook.select_optimizers(loop=self):  # type: ignore[union-attr]
                if self.optimizer_idx is None:
                    self.run_forward()
                    continue
                self.select(self.optimizer_idx)
                self.window.batches += self.piece_idx == 0
                self.held = bool(hook.hold_step(loop=self))
                if not self.window.contributions:
                    self.window.planned = hook.plan_window(loop=self) if self.held else 1  # type: ignore[assignment]
                self.run_forward()
                if self.loss is not None:
                    self.run_backward()
                if not self.held:
                    self.close_window(step)
            self.total_pieces += 1
        if self.pieces and not self.windows:
            self._say_if_unused()
            self.conclude_step(True)  # the module's own
        hook.after_batch(loop=self)
        if self.stepped:
            self.metrics.step = {}
        self.piece = self._counted = self.output = None
        self.batch_idx += 1
        self.total_batches += 1

    def run_forward(self) -> None:
        """Run the module on the piece and read what it returned; what it returned before is free by then."""
        self.output = None
        self.output = output = self.hook.forward(loop=self)
        if type(output) is Tensor and output.ndim == 0 and output.requires_grad and self.optimizer_idx is not None:
            self.loss, self.weight = output, None  # as nearly always; there is nothing to check
        else:
            self.loss, self.weight = read_output(output, self.hook, wanted=self.optimizer_idx is not None)
        self.hook.after_forward(loop=self)

    def run_backward(self) -> None:
        """Add the gradient of the loss to the window, seeded with its share in the window's mean."""
        hook, window = self.hook, self.window
        weight: Weight = 1 if self.weight is None else self.weight
        if not self.held and not window.contributions and self.world.size == 1:
            self.share, weight = None, window.planned  # alone in its window, the mean is its own gradient
        else:
            self.share = share_of(self.loss, weight, window.planned, self._shares)  # type: ignore[arg-type]
        hook.before_backward(loop=self)
        try:
            added = hook.backward(loop=self)
        except Exception as error:
            blame_for_loss(self, error)
            raise
        if added:
            window.add(weight, self.weight is not None)
            if self._replays[self.optimizer_idx or 0]:
                remember(self)
        hook.after_backward(loop=self)

    def close_window(self, step: int | None = None) -> None:
        """Step the selected optimizer with the mean gradient of its window; an empty window closes without a step.

        ``global_step`` becomes ``step``, by default one more: optimizers that step side by side count once.
        """
        window = self.window
        if window.contributions:
            applied = self.prepare_step() and self.hook.step(loop=self)
            self.conclude_step(bool(applied), step)
            self.hook.zero_grad(loop=self)
        window.clear()

    def prepare_step(self, show: bool = True) -> bool:
        """Make the gradient of the selected optimizer's window whole, then show it; False if a plugin asked that no step is taken."""
        hook, window = self.hook, self.window
        self.gradients, self.skip_step_reason = self.find_gradients(), None
        for phase in ("reduce_gradients", "unscale_gradients"):
            if phase not in hook.idle:
                getattr(hook, phase)(loop=self)
                self.gradients = self.find_gradients()  # some may be others now
        if window.weighted or window.weight != window.planned:
            scale_(self.gradients, window.correction(self.world))
        self._norms = {}
        if show:
            hook.before_step(loop=self)
            if self._edits_to_check:
                check_edits(self)
        (self.skip_step_reason,) = self.world.agree(self.skip_step_reason)
        return self.skip_step_reason is None

    def conclude_step(self, applied: bool, step: int | None = None) -> None:
        """Count the selected optimizer's step, after which ``global_step`` is ``step``, and tell of it."""
        if applied:
            self.global_step = step or self.global_step + 1
            for index in self.window.members:
                self.optimizer_steps[index] += 1
            self.stepped = True
            self.hook.after_step(loop=self)
        else:
            self.skipped_steps += 1
            self.hook.on_step_skipped(loop=self)
        self.gradients = []  # else they would fill the memory that the next forward needs

    def close_open_windows(self) -> None:
        """Step with the gradients that are still in open windows, so that none carry over to the next epoch."""
        step, self.stepped = self.global_step + 1, False
        for index in range(len(self.windows)):
            self.select(index)
            self.close_window(step)

    def should_stop(self) -> bool:
        """Whether training ends here: any rank has requested a stop, and no plugin delays it."""
        stop, self.interrupt_reason, self.end_epoch_reason = self.world.agree(
            self.stop_reason, self.interrupt_reason, self.end_epoch_reason
        )
        self.stopping = stop is not None and bool(self.interrupt_reason or self.hook.may_stop(loop=self))
        if self.stopping:
            self.stop(stop)  # type: ignore[arg-type]
        return self.stopping

    def keep_windows(self) -> None:
        """Keep the batches of a window until its step, so that :func:`lightloop.toolkit.replay` can go through it again; for before_fit."""
        self._replays = [True] * len(self.windows)

    def prepare_fit(self) -> None:
        """Build loader and optimizers, and leave no gradient of before."""
        self.reload_train_data()
        setup: Setup = self.hook.configure_optimizers(loop=self)  # type: ignore[assignment]
        self.optimizers, self.schedules, self.frequencies = setup.optimizers, setup.schedules, setup.frequencies
        self.optimizer_steps = [0] * len(self.optimizers)
        order = [name for name in self.step_order if name != "optimizer_idx" or len(self.optimizers) > 1]
        step: Any = self.module.training_step
        self.training_step = self.user_step = bind(step, order, self.step_arguments, ("batch",), self.absent_arguments)
        self.by_hand = setup.by_hand
        self.windows = windows_for(setup, takes(self.training_step, "optimizer_idx"))
        self._edits_to_check = 2 * len(self.windows)
        replays = [takes_closure(optimizer) for optimizer in self.optimizers]
        self._replays = [any(replays[index] for index in window.members) for window in self.windows]
        for index in range(len(self.windows)):
            self.select(index)
            self.hook.zero_grad(loop=self)
