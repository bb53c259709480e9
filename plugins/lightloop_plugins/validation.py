"""Validate during training: at the end of epochs, within them, or in any other rhythm."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta

from lightloop import Every, Loop, Plugin, evaluate, hookimpl, option
from lightloop.toolkit import Limited, defined, eval_loaders, size_of, warn


class Validation(Plugin):
    """Run validation during a fit, if there is validation data.

    An epoch that was broken off is not validated at its end. What the passes found is in ``loop.metrics``, and among the
    rows that loggers are given.

    Before training, a short sanity pass finds errors in the validation code early; ``loop.evaluation.sanity`` is then
    True, its metrics are forgotten, and a resumed run leaves it out.
    """

    name = "validation"
    tags = ("validates",)
    before = ("checkpoint", "duration", "time_limit")
    default = True
    state = ("rhythm",)

    interval: int | float | str | timedelta | Every = option(
        1.0,
        "Validate every so many batches of an epoch (int) or each such fraction of it (float, 1.0 is at its end); or in "
        "any other rhythm: '500 steps', '10 min', a timedelta.",
        flag="val_check_interval",
    )
    every_n_epoch: int | None = option(
        1,
        "Validate only every n-th epoch; None counts the batches of val_check_interval across epochs.",
        flag="check_val_every_n_epoch",
    )
    sanity_steps: int = option(
        2,
        "Number of batches of each validation loader to run as a check before training; -1 is all, 0 is none.",
        flag="num_sanity_val_steps",
        aliases=("nb_sanity_val_steps",),
        neutral=True,
    )

    def validate(self) -> None:
        if self.every_n_epoch is not None and self.every_n_epoch < 1:
            raise self.invalid("every_n_epoch", "a whole number from 1, or None")
        if self.sanity_steps < -1:
            raise self.invalid("sanity_steps", "a whole number from 0, or -1 for all")
        if isinstance(self.interval, float) and not 0 < self.interval <= 1:
            raise self.invalid("interval", "a fraction of an epoch above 0 and up to 1, or a whole number of batches")
        if isinstance(self.interval, float) and self.every_n_epoch is None:
            raise self.invalid(
                "interval", "a whole number of batches, or a rhythm, where check_val_every_n_epoch is None"
            )
        if isinstance(self.interval, int) and self.interval < 1:
            raise self.invalid("interval", "from 1")
        self.rhythm = self._make_rhythm()

    @hookimpl(wrapper=True)
    def before_fit(self, loop: Loop) -> Generator[None, None, None]:
        if "validate" in loop.eval_sources:
            self.rhythm.start(loop)
        yield  # everybody is ready for the sanity pass, and a resumed run is where it goes on
        if self._has_work(loop):
            size = loop.num_batches
            if self.every_n_epoch and isinstance(self.interval, int) and size is not None and self.interval > size:
                raise self.invalid(
                    "interval",
                    f"at most the {size} batches of an epoch, or counted across epochs by check_val_every_n_epoch=None",
                )
            if self.rhythm.only_at_epoch_end:
                loop.opt_out(self, "after_batch")
            if self.sanity_steps and loop.total_batches == 0:
                (stop,) = loop.world.agree(loop.stop_reason)  # one rank alone may have been sent a signal
                if stop is None and loop.hook.epochs_remain(loop=loop):
                    self._check_sanity(loop)
        else:
            loop.opt_out(self)

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        if self._is_in_turn(loop) and self.rhythm.due(loop):
            evaluate(loop, "validate")

    @hookimpl
    def after_epoch(self, loop: Loop) -> None:
        if self._is_in_turn(loop) and self.rhythm.due_at_epoch_end(loop):
            evaluate(loop, "validate")

    def _make_rhythm(self) -> Every:
        if not isinstance(self.interval, int):
            return Every(self.interval, "val_check_interval")
        return Every(f"{self.interval} batches") if self.every_n_epoch is None else Every(self._is_at_interval)

    def _is_at_interval(self, loop: Loop) -> bool:
        return (loop.batch_idx + 1) % self.interval == 0  # type: ignore[operator]

    def _is_in_turn(self, loop: Loop) -> bool:
        return self.every_n_epoch is None or (loop.epoch + 1) % self.every_n_epoch == 0

    def _has_work(self, loop: Loop) -> bool:
        """Whether there is something to validate on; what it takes is checked now rather than after an epoch."""
        loaders = eval_loaders(loop, "validate")
        if loaders and defined(loop.module, "validation_step") is None:
            raise TypeError(
                f"there is validation data and {type(loop.module).__name__} has no validation_step: define "
                "validation_step(self, batch, batch_idx), or give no data to validate"
            )
        empty = all(size_of(loader) == 0 for loader in loaders.values())
        if loaders and loop.world.agree(None if empty else "this rank has batches")[0] is None:
            warn("the validation data has no batches: nothing is validated")
            return False
        return bool(loaders)

    def _check_sanity(self, loop: Loop) -> None:
        loaders = eval_loaders(loop, "validate")
        if self.sanity_steps > 0:
            loaders = {name: Limited(loader, self.sanity_steps) for name, loader in loaders.items()}
        evaluate(loop, "validate", loaders, sanity=True)
