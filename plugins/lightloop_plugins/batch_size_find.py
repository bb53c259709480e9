"""Find the largest batch size that fits into memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import nn

from lightloop import Loop, Plugin, Trainer, hookimpl, option
from lightloop.toolkit import describe
from lightloop_plugins._trial import Trial, free_memory, is_out_of_memory, run


def batch_size_find(
    trainer: Trainer,
    module: nn.Module,
    make_loader: Callable[[int], Iterable[Any]] | None = None,
    *,
    attribute: str = "batch_size",
    mode: Literal["power", "binary"] = "power",
    start: int = 2,
    limit: int | None = None,
    steps: int = 3,
) -> int:
    """Train copies of ``module`` for a few steps with growing batches until memory runs out.

    Everything that shapes a step is as in ``trainer``; nothing is left of the trials, as with ``lr_find``.

    Args:
        trainer: is going to train.
        module: is going to be trained.
        make_loader: gives a loader for a batch size. Without it, the module's ``attribute`` is set, its
            ``train_dataloader`` has to use that, and the attribute is left at what was found.
        attribute: the module's attribute that holds the batch size.
        mode: "power" doubles until it fails, and takes the last that went well; "binary" then goes on between the two.
        start: the first size tried.
        limit: no size above it is tried; nor is one that the data cannot fill.
        steps: of each trial. The first steps of some optimizers need less memory than those that follow.

    Raises:
        ValueError: if a number makes no sense, the module has no such attribute, ``start`` is too much already, or it cannot
            be known how many samples are in a batch.
    """
    for name, value in (("start", start), ("steps", steps), *((("limit", limit),) if limit is not None else ())):
        if value < 1:
            raise ValueError(f"batch_size_find: {name} must be a whole number from 1; it is {value}")
    if mode not in ("power", "binary"):
        raise ValueError(f"batch_size_find: mode must be 'power' or 'binary'; it is {mode!r}")
    if make_loader is None and not hasattr(module, attribute):
        raise ValueError(
            f"batch_size_find: {type(module).__name__} has no attribute {attribute!r} to set; name the one that its "
            "train_dataloader uses, or pass make_loader"
        )

    def fits(size: int) -> int | None:
        return _largest_batch(trainer, module, make_loader, attribute, size, steps)

    found = _search(fits, start, limit, mode == "binary")
    if make_loader is None:
        setattr(module, attribute, found)
    return found


def _search(fits: Callable[[int], int | None], start: int, limit: int | None, between: bool) -> int:
    """The largest size that fits; ``fits`` gives the size that there really was, less if there are no more data."""
    size, good, bad = start if limit is None else min(start, limit), 0, None
    while bad is None:
        seen = fits(size)
        if seen is None:
            bad = size
        elif seen < size or size == limit:
            return seen
        else:
            good, size = size, 2 * size if limit is None else min(2 * size, limit)
    if not good:
        raise ValueError(f"batch_size_find: there is no memory even for batches of {bad}; begin with a smaller start")
    while between and bad - good > 1:
        middle = (good + bad) // 2
        seen = fits(middle)
        if seen is not None and seen < middle:
            return seen
        good, bad = (good, middle) if seen is None else (middle, bad)
    return good


def _largest_batch(
    trainer: Trainer,
    module: nn.Module,
    make_loader: Callable[[int], Iterable[Any]] | None,
    attribute: str,
    size: int,
    steps: int,
) -> int | None:
    """The size of the largest batch of a trial with batches of ``size``; None if there was no memory for it."""
    trial, model = Steps(), copy.deepcopy(module)
    trial.steps = steps
    if make_loader is None:
        setattr(model, attribute, size)
    try:
        run(trainer, model, None if make_loader is None else make_loader(size), trial)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failed = True
    else:
        failed = False
    del model
    free_memory()  # out here, where no traceback holds what the attempt had
    if not failed and trial.largest == 1 < size and trial.several:
        asked = f"self.{attribute} is" if make_loader is None else "make_loader is asked for"
        raise ValueError(
            f"batch_size_find: {asked} {size}, and each batch has one sample by its form: make batches of so many, or define "
            f"batch_size(batch) on {type(module).__name__}"
        )
    return None if failed else trial.largest


class Steps(Trial):
    """Makes so many steps, and looks how large the batches really are."""

    name = "batch_size_trial"
    replaces = (*Trial.replaces, "split_on_oom")

    def validate(self) -> None:
        self.steps, self.largest, self.several = 1, 0, False

    @hookimpl
    def before_batch(self, loop: Loop) -> None:
        size = loop.samples_in(loop.batch)
        if size is None:
            raise ValueError(
                f"batch_size_find cannot know how many samples are in {describe(loop.batch)}: define batch_size(batch) on "
                f"{loop.module_name}"
            )
        self.largest = max(self.largest, size)
        self.several = loop.num_batches != 1

    def go_on(self, loop: Loop) -> bool:
        return loop.global_step + loop.skipped_steps < self.steps


class BatchSizeFind(Plugin):
    """Before a fit, run :func:`batch_size_find` and set the module's attribute to what it found.

    The module's ``train_dataloader`` has to use that attribute.
    """

    name = "batch_size_find"
    tags = ("searches",)
    before = ("lr_find",)
    after = ("accelerator", "strategy")

    mode: str | bool | None = option(
        None,
        "Find the largest batch size before training: 'power', 'binary', or True for 'power'.",
        flag="auto_scale_batch_size",
    )
    attribute: str = option("batch_size", "The module's attribute that holds the batch size.", enables=False)

    def validate(self) -> None:
        if self.mode not in ("power", "binary", True, None):
            raise self.invalid("mode", "'power', 'binary' or True")

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.stage != "fit":
            return
        if loop.world.size > 1:
            raise ValueError("auto_scale_batch_size works in one process: run batch_size_find first")
        mode: Literal["power", "binary"] = "binary" if self.mode == "binary" else "power"
        batch_size_find(loop.trainer, loop.module, attribute=self.attribute, mode=mode)
