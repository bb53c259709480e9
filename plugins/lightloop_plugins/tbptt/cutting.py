"""Cut a batch of sequences along time, whatever it is nested in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightloop import map_leaves

Dims = int | Mapping[str, int | None]


@dataclass
class Pieces:
    """A batch cut along time."""

    pieces: list[Any]
    steps: list[int]
    """How many time steps are in each; of sequences of different lengths, those of all of them together."""
    going_on: list[Tensor | None] = field(default_factory=list)
    """Which sequences of the piece before are still in each packed one, where not all are."""


@dataclass
class _Leaf:
    """How one leaf is cut."""

    length: int
    take: Callable[[int, int], Any]
    count: Callable[[int, int], int] | None = None
    packed: PackedSequence | None = None


def cut(batch: Any, size: int, dims: Dims) -> Pieces:
    """Cut ``batch`` into pieces of ``size`` time steps, the last one perhaps shorter; all containers keep their types.

    Cut are tensors and arrays along their time dimension, PackedSequence, and lists of sequences with lengths of their
    own: 1-dimensional tensors, lists of numbers, or what ``dims`` names by the path of the list. Strings, numbers and
    the like are in every piece.

    Args:
        batch: any nesting of mappings, tuples, lists and dataclasses.
        size: time steps per piece.
        dims: the time dimension; or those of leaves by path ("inputs.text", "0"), None where a leaf is not cut, and 1
            for all that are not named.

    Raises:
        ValueError: if a time dimension cannot be known, or the lengths differ.
    """
    leaves = _measure(batch, dims)
    length = max(leaf.length for leaf in leaves.values())
    bounds = [(start, min(start + size, length)) for start in range(0, length, size)]
    counted = next((leaf.count for leaf in leaves.values() if leaf.count), None)
    packed = next((leaf.packed for leaf in leaves.values() if leaf.packed is not None), None)

    def piece(start: int, stop: int) -> Any:
        def take(leaf: Any, path: str) -> Any:
            return leaves[path].take(start, stop) if path in leaves else leaf

        return map_leaves(take, batch, is_leaf=lambda _, path: path in leaves)

    return Pieces(
        [batch] if len(bounds) == 1 else [piece(*bound) for bound in bounds],
        [counted(*bound) if counted else bound[1] - bound[0] for bound in bounds],
        [None] * len(bounds) if packed is None else _going_on(packed, [start for start, _ in bounds]),
    )


def _measure(batch: Any, dims: Dims) -> dict[str, _Leaf]:
    leaves: dict[str, _Leaf] = {}
    unused = dict(dims) if isinstance(dims, Mapping) else {}
    default = dims if isinstance(dims, int) else 1
    rows: dict[str, int] = {}

    def is_leaf(value: Any, path: str) -> bool:
        if path in unused:
            return unused[path] is None or isinstance(value, list)
        return isinstance(value, list) and _are_rows(value, path)

    def measure(leaf: Any, path: str) -> Any:
        named = path in unused
        dim = unused.pop(path, default)
        if dim is None:
            return leaf
        if isinstance(leaf, PackedSequence):
            leaves[path] = _packed(leaf)
        elif isinstance(leaf, list):
            leaves[path] = _rows(leaf, dim if named else 0)
        elif hasattr(leaf, "ndim") and hasattr(leaf, "shape"):
            leaves[path] = _dense(leaf, path, dim)
            if not named and dim == 1:
                rows[path] = leaf.shape[0]
        return leaf

    map_leaves(measure, batch, is_leaf=is_leaf)
    if unused:
        raise ValueError(
            f"tbptt_time_dim names {', '.join(map(repr, unused))}, which is no tensor or list in the batch"
        )
    if not leaves:
        raise ValueError(
            f"truncated_bptt_steps found nothing with a time dimension in a batch of {type(batch).__name__}"
        )
    _refuse_differing({path: leaf.length for path, leaf in leaves.items()}, "time steps")
    _refuse_differing(rows, "sequences along dimension 0")
    return leaves


def _refuse_differing(sizes: Mapping[str, int], what: str) -> None:
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} in {path!r}" for path, size in sizes.items())
        raise ValueError(
            f"the parts of the batch do not have equally many {what}: {found}. Say by tbptt_time_dim={{path: dimension}} which "
            "dimension is time, None for what is not to be cut; the path of a list names sequences with lengths of their own"
        )


def _dense(leaf: Any, path: str, dim: int) -> _Leaf:
    if not -leaf.ndim <= dim < leaf.ndim:
        raise ValueError(
            f"the batch's {path!r} of shape {tuple(leaf.shape)} has no dimension {dim} to be time: "
            f"say which one is, or None to have it in every piece, by tbptt_time_dim={{{path!r}: None}}"
        )
    before = (slice(None),) * (dim % leaf.ndim)
    return _Leaf(leaf.shape[dim], lambda start, stop: leaf[(*before, slice(start, stop))])


def _are_rows(value: Sequence[Any], path: str) -> bool:
    """Whether a list is one of sequences with lengths of their own, and not of tensors with a batch dimension."""
    if value and all(isinstance(row, Tensor) and row.ndim == 1 for row in value):
        return bool(path) or len({len(row) for row in value}) > 1
    return bool(value) and all(
        isinstance(row, (list, tuple)) and all(isinstance(entry, (int, float)) for entry in row) for row in value
    )


def _rows(rows: list[Any], dim: int) -> _Leaf:
    def index(row: Any, start: int, stop: int) -> Any:
        return row[(*(slice(None),) * dim, slice(start, stop))] if dim else row[start:stop]

    lengths = [row.shape[dim] if hasattr(row, "shape") else len(row) for row in rows]
    return _Leaf(
        max(lengths),
        lambda start, stop: [index(row, start, stop) for row in rows],
        lambda start, stop: sum(max(0, min(stop, length) - start) for length in lengths),
    )


def _packed(sequences: PackedSequence) -> _Leaf:
    sizes = sequences.batch_sizes
    offsets = [0, *sizes.cumsum(0).tolist()]  # on the CPU, as PackedSequence wants it: nobody waits

    def take(start: int, stop: int) -> PackedSequence:
        data = sequences.data[offsets[start] : offsets[stop]]
        if sequences.sorted_indices is None:
            return PackedSequence(data, sizes[start:stop])
        here = sequences.sorted_indices[: int(sizes[start])]
        order = torch.searchsorted(here.sort().values, here)
        return PackedSequence(data, sizes[start:stop], order, order.argsort())

    return _Leaf(len(sizes), take, lambda start, stop: offsets[stop] - offsets[start], sequences)


def _going_on(sequences: PackedSequence, starts: list[int]) -> list[Tensor | None]:
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
