"""Cut a batch of sequences along time, whatever it is nested in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightloop.toolkit import map_leaves
from lightloop_plugins.tbptt.leaves import Leaf, dense_leaf, going_on, is_ragged, packed_leaf, ragged_leaf

Dims = int | Mapping[str, int | None]


@dataclass
class Pieces:
    """A batch cut along time."""

    pieces: list[Any]
    steps: list[int]
    """How many time steps are in each; of sequences of different lengths, those of all of them together."""
    going_on: list[Tensor | None] = field(default_factory=list)
    """Which sequences of the piece before are still in each packed one, where not all are."""


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
        [None] * len(bounds) if packed is None else going_on(packed, [start for start, _ in bounds]),
    )


def _measure(batch: Any, dims: Dims) -> dict[str, Leaf]:
    leaves: dict[str, Leaf] = {}
    unused = dict(dims) if isinstance(dims, Mapping) else {}
    default = dims if isinstance(dims, int) else 1
    rows: dict[str, int] = {}

    def is_leaf(value: Any, path: str) -> bool:
        if path in unused:
            return unused[path] is None or isinstance(value, list)
        return isinstance(value, list) and is_ragged(value, path)

    def measure(leaf: Any, path: str) -> Any:
        named = path in unused
        dim = unused.pop(path, default)
        if dim is None:
            return leaf
        if isinstance(leaf, PackedSequence):
            leaves[path] = packed_leaf(leaf)
        elif isinstance(leaf, list):
            leaves[path] = ragged_leaf(leaf, dim if named else 0)
        elif hasattr(leaf, "ndim") and hasattr(leaf, "shape"):
            leaves[path] = dense_leaf(leaf, path, dim)
            if not named and dim == 1:
                rows[path] = leaf.shape[0]
        return leaf

    map_leaves(measure, batch, is_leaf=is_leaf)
    _check(leaves, rows, unused, batch)
    return leaves


def _check(leaves: Mapping[str, Leaf], rows: Mapping[str, int], unused: Mapping[str, Any], batch: Any) -> None:
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


def _refuse_differing(sizes: Mapping[str, int], what: str) -> None:
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} in {path!r}" for path, size in sizes.items())
        raise ValueError(
            f"the parts of the batch do not have equally many {what}: {found}. Say by tbptt_time_dim={{path: dimension}} which "
            "dimension is time, None for what is not to be cut; the path of a list names sequences with lengths of their own"
        )
