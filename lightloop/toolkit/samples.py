"""Take some of the samples of a batch."""

from __future__ import annotations

from typing import Any

from lightloop.inputs.samples import FIELDS, batch_size, has_channels, is_array, is_plain, kind_of_items
from lightloop.toolkit.containers import map_leaves


def take_samples(batch: Any, size: int, first: int, end: int, *, collated: bool = False) -> Any:
    """Return samples ``first`` to ``end`` (exclusive) of ``batch``, which has ``size`` samples.

    Tensors and arrays are cut along their first dimension, lists of samples by their items; what has no dimension (numbers,
    text that is one, None) goes into each part.

    Args:
        batch: of containers as :func:`lightloop.toolkit.map_leaves` knows them.
        size: how many samples it has, see :func:`lightloop.toolkit.batch_size`.
        first: the first sample.
        end: the sample after the last.
        collated: as for :func:`lightloop.toolkit.batch_size`.

    Raises:
        ValueError: if there is a part of which it cannot be said which samples it belongs to.
    """

    def is_listed(value: Any, path: str) -> bool:
        return _has_samples(value, size, collated, path)

    def part(value: Any, path: str) -> Any:
        listed = isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
        if listed or (is_array(value) and value.shape[0] == size):
            return value[first:end]
        if is_array(value) or not (is_plain(value) or batch_size(value) is None):
            what = f"of shape {tuple(value.shape)}" if is_array(value) else f"a {type(value).__name__}"
            raise ValueError(f"{_name(path)} is {what}, and cannot be cut into {size} samples")
        return value

    return map_leaves(part, batch, is_leaf=is_listed)


def _has_samples(value: Any, size: int, collated: bool, path: str) -> bool:
    """Whether a list has a sample in each of its items, and not a field of the batch.

    Raises:
        ValueError: if it may be either.
    """
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields") or len(value) != size or not value:
        return False
    kind = kind_of_items(value)
    if kind is None or (collated and kind == "array"):
        return False
    if kind in ("text", "number"):
        return kind == "text" or isinstance(value, list)
    if any(batch_size(item, collated=collated) != size for item in value):
        return True
    images = has_channels(value[0])
    if kind == "array" and size <= FIELDS and not images:
        return False  # x, y
    if kind == "array" and images and size > FIELDS and isinstance(value, list):
        return True
    raise ValueError(
        f"{_name(path)} is a list of {size}, whose items could be samples, or fields of {size} samples each"
    )


def _name(path: str) -> str:
    return f"the batch's part {path!r}" if path else "the batch"
