"""Truncated back-propagation through time (Williams and Peng 1990)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightloop import Key, Loop, Plugin, hookimpl, option
from lightloop.toolkit import defined, map_leaves, needs_closure, refuse_closures, takes
from lightloop_plugins.tbptt.cutting import Pieces, cut

BATCH_LOSS: Key[Tensor] = Key("tbptt.batch_loss")
"""The loss of the last batch: the mean over its pieces, each weighted by its time steps; of the last optimizer."""
OUTPUTS: Key[list[Any]] = Key("tbptt.outputs")
"""What training_step returned for each piece (and optimizer) of the last batch, detached."""


class TBPTT(Plugin):
    """Split each batch along time into pieces of ``steps``, and carry the detached hidden state from one to the next.

    ``training_step(self, batch, hiddens)`` has None as ``hiddens`` for the first piece of a batch and returns
    ``{"loss": ..., "hiddens": ...}``. The state is kept for each optimizer apart; None in place of the mapping keeps it
    as it is. In packed input, where sequences end, states of shape ``(layers, sequences, features)`` go on with the
    others. Each piece steps, unless ``accumulate``: then the batch is one contribution, its gradient the mean over its
    time steps. A window of several batches closes after the last piece of its last one. The module's
    ``tbptt_split_batch(batch, split_size)`` cuts in place of :func:`cut`.
    """

    name = "tbptt"
    before = ("log_every", "logger")
    arguments = ("hiddens",)
    disturbs = ("gradients", "parameters")
    transient = ("_pieces", "_shares", "_hidden", "_losses", "_outputs")

    steps: int | None = option(
        None,
        "Split batches of sequences into pieces of this many time steps; None is off.",
        flag="truncated_bptt_steps",
    )
    time_dim: int | Mapping[str, int | None] = option(
        1,
        "The time dimension of all tensors of a batch; or of each by its path, {'inputs.text': 1, 'label': None}, "
        "None for what is in every piece, 1 for what is not named.",
        enables=False,
    )
    accumulate: bool = option(
        False,
        "Accumulate the gradient over the pieces of a batch and step once, instead of after each piece.",
        enables=False,
    )

    def validate(self) -> None:
        if self.steps is None or self.steps < 1:
            raise self.invalid("steps", "a whole number from 1")
        dims = self.time_dim.values() if isinstance(self.time_dim, Mapping) else [self.time_dim]
        if any(dim is not None and type(dim) is not int for dim in dims):
            raise self.invalid("time_dim", "a dimension, or a mapping from paths to dimensions or None")
        self._begin(Pieces([], []))

    @hookimpl
    def setup(self, loop: Loop) -> None:
        loop.step_arguments["hiddens"] = self._given
        loop.step_order.append("hiddens")
        if self.accumulate:
            loop.opt_out(self, "epoch_steps")

    @hookimpl(wrapper=True)
    def epoch_steps(self, loop: Loop, epoch: int) -> Generator[None, float, float]:
        steps = yield
        return (
            math.inf if steps == loop.hook.epoch_batches(loop=loop, epoch=epoch) else steps
        )  # how many pieces there are shows when they are cut

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        assert loop.user_step is not None
        if not takes(loop.user_step, "hiddens"):
            raise TypeError(
                f"truncated_bptt_steps={self.steps} gives the hidden state to training_step by the argument 'hiddens', "
                f"which {type(loop.module).__name__}.training_step does not take"
            )
        why = "which runs pieces again that began from hidden states of other weights: leave one of the two out"
        refuse_closures(loop, "truncated_bptt_steps", why, needs_closure)
        self._begin(Pieces([], []))
        if not self.accumulate:
            loop.opt_out(self, "hold_step")

    @hookimpl
    def split_batch(self, loop: Loop) -> Sequence[Any]:
        assert self.steps is not None
        own = defined(loop.module, "tbptt_split_batch")
        self._begin(
            cut(loop.batch, self.steps, self.time_dim) if own is None else self._cut_by(own, loop.batch, self.steps)
        )
        return self._pieces.pieces

    @hookimpl
    def hold_step(self, loop: Loop) -> bool | None:
        return True if loop.piece_idx < len(loop.pieces) - 1 else None

    @hookimpl
    def after_forward(self, loop: Loop) -> None:
        output, which = loop.output, loop.optimizer_idx
        if output is not None:
            if not isinstance(output, Mapping) or "hiddens" not in output:
                found = (
                    f"the keys {', '.join(map(str, output))}" if isinstance(output, Mapping) else type(output).__name__
                )
                raise ValueError(
                    "with truncated_bptt_steps, training_step must return {'loss': ..., 'hiddens': ...}; it returned "
                    + found
                )
            output = map_leaves(_detached, output)
            self._hidden[which] = (loop.piece_idx, output["hiddens"])
        self._outputs.append(output)
        if loop.loss is None:
            return
        share = self._shares[loop.piece_idx]
        self._losses.setdefault(which, []).append((share, loop.loss.detach()))
        if loop.weight is None and (loop.held or loop.window.contributions):
            loop.weight = share

    @hookimpl
    def after_batch(self, loop: Loop) -> None:
        loop.stash[OUTPUTS] = self._outputs
        for which, losses in self._losses.items():
            seen = sum((share for share, _ in losses), Fraction())
            loss = torch.stack([loss.reshape(()) * float(share / seen) for share, loss in losses]).sum()
            loop.stash[BATCH_LOSS] = loss
            loop.log("batch_loss" if len(loop.windows) == 1 else f"batch_loss_{which}", loss)
        self._begin(Pieces([], []))

    def _begin(self, pieces: Pieces) -> None:
        total = sum(pieces.steps)
        self._pieces = pieces
        self._shares = [Fraction(steps, total) for steps in pieces.steps]
        self._hidden: dict[int | None, tuple[int, Any]] = {}
        """By optimizer: the piece that returned it, and the state."""
        self._losses: dict[int | None, list[tuple[Fraction, Tensor]]] = {}
        self._outputs: list[Any] = []

    def _cut_by(self, own: Callable[..., Any], batch: Any, size: int) -> Pieces:
        """The user's pieces; each counts by its time steps, or like the others where those cannot be told."""
        pieces = list(own(batch, size))
        try:
            steps = [sum(cut(piece, size, self.time_dim).steps) for piece in pieces]
        except ValueError:
            steps = [1] * len(pieces)
        return Pieces(pieces, steps, [None] * len(pieces))

    def _given(self, loop: Loop) -> Any:
        """The argument ``hiddens``."""
        if loop.optimizer_idx not in self._hidden:
            return None
        piece, hidden = self._hidden[loop.optimizer_idx]
        for going_on in self._pieces.going_on[piece + 1 : loop.piece_idx + 1]:
            if going_on is not None:
                hidden = map_leaves(partial(_rows_of, rows=going_on), hidden)
        return hidden


def _detached(leaf: Any, path: str) -> Any:
    if isinstance(leaf, PackedSequence):
        return PackedSequence(leaf.data.detach(), *leaf[1:])
    return leaf.detach() if callable(getattr(leaf, "detach", None)) else leaf


def _rows_of(leaf: Any, path: str, rows: Tensor) -> Any:
    return leaf.index_select(1, rows.to(leaf.device)) if isinstance(leaf, Tensor) and leaf.ndim == 3 else leaf
