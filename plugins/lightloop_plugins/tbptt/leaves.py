"""The kinds of sequences in a batch, and how each is cut along time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


@dataclass
class Leaf:
    """How one leaf is cut."""

    length: int
    take: Callable[[int, int], Any]
    count: Callable[[int, int], int] | None = None
    packed: PackedSequence | None = None


def dense_leaf(leaf: Any, path: str, dim: int) -> Leaf:
    """A tensor or array, cut along ``dim``."""
    if not -leaf.ndim <= dim < leaf.ndim:
        raise ValueError(
            f"the batch's {path!r} of shape {tuple(leaf.shape)} has no dimension {dim} to be time: "
            f"say which one is, or None to have it in every piece, by tbptt_time_dim={{{path!r}: None}}"
        )
    before = (slice(None),) * (dim % leaf.ndim)
    return Leaf(leaf.shape[dim], lambda start, stop: leaf[(*before, slice(start, stop))])


def is_ragged(value: Sequence[Any], path: str) -> bool:
    """Whether a list is one of sequences with lengths of their own, and not of tensors with a batch dimension."""
    if value and all(isinstance(row, Tensor) and row.ndim == 1 for row in value):
        return bool(path) or len({len(row) for row in value}) > 1
    return bool(value) and all(
        isinstance(row, (list, tuple)) and all(isinstance(entry, (int, float)) for entry in row) for row in value
    )


def ragged_leaf(rows: list[Any], dim: int) -> Leaf:
    """A list of sequences with lengths of their own, each cut along ``dim``; those that have ended are empty."""

    def index(row: Any, start: int, stop: int) -> Any:
        return row[(*(slice(None),) * dim, slice(start, stop))] if dim else row[start:stop]

    lengths = [row.shape[dim] if hasattr(row, "shape") else len(row) for row in rows]
    return Leaf(
        max(lengths),
        lambda start, stop: [index(row, start, stop) for row in rows],
        lambda start, stop: sum(max(0, min(stop, length) - start) for length in lengths),
    )


def packed_leaf(sequences: PackedSequence) -> Leaf:
    """Packed sequences; a piece has those that go on, in their order."""
    sizes = sequences.batch_sizes
    offsets = [0, *sizes.cumsum(0).tolist()]  # on the CPU, as PackedSequence wants it: nobody waits

    def take(start: int, stop: int) -> PackedSequence:
        data = sequences.data[offsets[start] : offsets[stop]]
        if sequences.sorted_indices is None:
            return PackedSequence(data, sizes[start:stop])
        here = sequences.sorted_indices[: int(sizes[start])]
        order = torch.searchsorted(here.sort().values, here)
        return PackedSequence(data, sizes[start:stop], order, order.argsort())

    return Leaf(len(sizes), take, lambda start, stop: offsets[stop] - offsets[start], sequences)


def going_on(sequences: PackedSequence, starts: list[int]) -> list[Tensor | None]:
    """For the piece at each of ``starts``: the indices, in the piece before, of the sequences that are in it."""
    sizes = [int(sequences.batch_sizes[start]) for start in starts]
    order = sequences.sorted_indices
    if order is None:
        order = torch.arange(sizes[0], device=sequences.data.device)
    found: list[Tensor | None] = [None]
    for before, now in pairwise(sizes):
        same = before == now
        found.append(None if same else torch.searchsorted(order[:before].sort().values, order[:now].sort().values))
    return found
