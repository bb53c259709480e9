"""Keep ranks in lockstep: if one has no data or no loss, all skip it, or the run ends with an error."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lightloop import Loop, Plugin, World, hookimpl, option
from lightloop.toolkit import Limited, size_of, warn

PATIENCE = 120.0
"""For how many seconds a rank whose data has ended too early waits for the others to end there, too."""


class Lockstep(Plugin):
    """Ensure that all ranks take the same steps.

    Data: ranks train on as many batches as the one that has the fewest; a warning says which one that is. Where lengths are
    not known, they ask one another before each batch. Where data ends before its length says, it must on all ranks. Batches that are cut into pieces must be cut into as many. A batch that is passed over, or a loss that is None, on one rank
    alone would leave the others waiting: it is an error, unless ``together`` is set. Then all ranks ask one another twice
    for each batch, and pass over one that any of them passes over.
    """

    name = "lockstep"
    before = ("shard_data",)
    after = ("strategy",)
    default = True

    together: bool = option(
        False,
        "With several processes, skip a batch on all of them if one has no loss for it; False raises an error.",
        flag="skip_together",
    )

    @hookimpl
    def setup(self, loop: Loop) -> None:
        if loop.world.size == 1:
            loop.opt_out(self)
        elif not any(hasattr(type(other), "split_batch") for other in loop.plugins if other is not self):
            loop.opt_out(self, "split_batch")

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop, stage: str) -> Generator[None, Any, Any]:
        loader = yield
        needed = stage == "fit" or loop.world.in_lockstep
        return cut(loader, loop.world, f"the data to {stage}") if needed else loader

    @hookimpl(wrapper=True)
    def read_batches(self, loop: Loop) -> Generator[None, Any, Any]:
        batches = yield
        return itertools.chain(batches, self._end(loop))

    def _end(self, loop: Loop) -> Iterator[Any]:
        """See to it, where the data ends before its length says, that it does on all ranks."""
        if size_of(loop.train_loader) is not None and not loop.is_last_batch:
            try:
                loop.world.barrier(within=PATIENCE)
            except RuntimeError as error:
                error.add_note(
                    f"the training data of rank {loop.world.rank} ended after {loop.batch_idx} batches and says by len() that "
                    f"it has {loop.num_batches}: either all ranks end there, or none does"
                )
                raise
        yield from ()

    @hookimpl(wrapper=True, tryfirst=True)
    def before_batch(self, loop: Loop) -> Generator[None, None, None]:
        yield  # by now everybody has said what they want
        if loop.batch is None:
            loop.skip_batch("a plugin took it away")
        reason = self._agreed(loop, loop.skip_batch_reason, "the batch is passed over")
        if reason is not None:
            loop.skip_batch(reason)

    @hookimpl(wrapper=True, tryfirst=True)
    def split_batch(self, loop: Loop) -> Generator[None, Any, Any]:
        pieces = yield
        count = len(pieces)
        least, most = loop.world.reduce(torch.tensor([count, -count]), "min").tolist()
        if least != -most:
            raise ValueError(
                f"the batch of rank {loop.world.rank} is cut into {count} pieces, and of other ranks into {least} to {-most}: "
                "each rank must step equally often, so give all of them batches of one length"
            )
        return pieces

    @hookimpl(wrapper=True, tryfirst=True)
    def after_forward(self, loop: Loop) -> Generator[None, None, None]:
        yield
        if loop.optimizer_idx is not None and not loop.replaying:
            mine = "training_step returned None" if loop.loss is None else None
            if self._agreed(loop, mine, "there is no loss") is not None:
                loop.loss = None

    @hookimpl
    def before_evaluation(self, loop: Loop) -> None:
        assert loop.evaluation is not None
        marks = loop.world.gather(None if loop.evaluation.stage == "predict" else _fingerprint(loop.module))
        odd = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
        if odd:
            raise ValueError(
                f"the weights of rank {odd[0]} are others than those of rank 0, so that what the ranks find cannot be averaged: "
                "give every rank the same module, or the same checkpoint by resume=path"
            )

    def _agreed(self, loop: Loop, mine: str | None, what: str) -> str | None:
        if self.together:
            return loop.world.agree(mine)[0]
        if mine is not None:
            raise ValueError(
                f"{what} on rank {loop.world.rank} ({mine}): with {loop.world.size} processes each must train on each batch, or "
                "the others would wait for it. Set skip_together=True to let all of them pass over such a batch"
            )
        return None


def _fingerprint(module: nn.Module) -> int | None:
    """A number that tells unlike weights apart, from a few values of each parameter; None where they are split over ranks."""
    values = []
    for parameter in module.parameters():
        if hasattr(parameter, "to_local") or is_lazy(parameter) or parameter.layout is not torch.strided:
            return None
        flat, count = parameter.detach().reshape(-1), parameter.numel()
        if count:
            some = torch.tensor(sorted({0, count // 3, 2 * count // 3, count - 1}), device=flat.device)
            values.append(flat.index_select(0, some).float())
    if not values:
        return None
    device = values[0].device
    return zlib.crc32(torch.cat([value.to(device) for value in values]).cpu().numpy().tobytes())


class Together:
    """The batches of ``loader`` for as long as every rank has one, where its length is not known."""

    def __init__(self, loader: Iterable[Any], world: World, what: str) -> None:
        self.loader = loader
        self._world = world
        self._what = what

    def __iter__(self) -> Iterator[Any]:
        nothing = object()
        rest = iter(self.loader)
        for number in range(2**63):
            batch = next(rest, nothing)
            mine = f"rank {self._world.rank} after {number} batches" if batch is nothing else None
            (ended,) = self._world.agree(mine)
            if ended is not None:
                if batch is not nothing:
                    _say_cut(self._what, f"the data of {ended} is at an end, and rank {self._world.rank} has more")
                return
            yield batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def cut(loader: Iterable[Any], world: World, what: str) -> Iterable[Any]:
    """``loader``, cut to the rank that has the fewest batches; who that is, is said in a warning."""
    sizes = world.gather(size_of(loader))
    if any(size is None for size in sizes):
        return Together(loader, world, what)
    least = min(sizes)  # type: ignore[type-var]
    if sizes[world.rank] == least:
        return loader
    _say_cut(what, f"rank {sizes.index(least)} has {least} batches and rank {world.rank} has {sizes[world.rank]}")
    return Limited(loader, least)  # type: ignore[arg-type]


def _say_cut(what: str, how: str) -> None:
    warn(f"{what}: {how}; what it has more is left out, since all ranks go on together")
