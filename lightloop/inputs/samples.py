"""Count the samples of a batch, or say that they cannot be counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, default_collate

DECLARED = ("batch_size", "num_graphs")
"""The attributes by which a batch may say how many samples it has."""
FIELDS = 3
"""So many tensors of one shape side by side are taken for ``x, y, weight``; more of them could be samples as well."""
CHANNELS = (1, 3, 4)
SHOWN = 4
"""So many parts of a batch are named in a message."""


@dataclass(frozen=True)
class Evidence:
    """How many samples there may be by one part of a batch."""

    possible: frozenset[int]
    """Each number that agrees with the part; none where it contradicts itself."""
    known: int | None
    """The one that is meant, if the part alone tells."""
    firm: bool = True
    """Whether it comes from tensors or declarations; a list of plain values counts only where none of them decides."""


def batch_size(batch: Any, *, collated: bool = False) -> int | None:
    """Return the number of samples in ``batch``; None if unknown.

    What declares it is believed: an attribute ``batch_size`` or ``num_graphs``; a ``PackedSequence`` has as many samples as
    sequences. Otherwise all tensors and arrays in the batch, at any depth, must agree on their first dimension. Without
    tensors, a list counts as its length. Numbers, scalar tensors, text, None and empty lists say nothing beside others; a
    batch of nothing else is one sample.

    A list of tensors may be fields of a batch (``[x, y]``) or samples (``[image, image, …]``); the page *What a
    metric means* has the table of how they are told apart, and of where the answer is None because they cannot be.

    Args:
        batch: anything that a loader may give.
        collated: the batch was made by torch's ``default_collate``, which leaves no list of samples that are tensors.
    """
    found = _look(batch, collated, frozenset())
    if found is not None:
        return found.known
    return 1 if is_plain(batch) else None


def is_collated(loader: Any) -> bool:
    """Whether ``loader``, or the DataLoader that it wraps, collates batches with torch's ``default_collate``."""
    while not isinstance(loader, DataLoader) and "loader" in getattr(loader, "__dict__", ()):
        loader = loader.loader
    return isinstance(loader, DataLoader) and loader.collate_fn is default_collate


def checked(size: Any, module: str) -> int | None:
    """What a module says that the size of a batch is, if it makes sense."""
    if size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0):
        return size
    raise TypeError(f"{module}.batch_size(batch) must return a whole number of samples, or None; it returned {size!r}")


def describe(batch: Any) -> str:
    """Describe the contents of ``batch`` in a few words, for messages."""
    if isinstance(batch, Mapping):
        parts = [f"{name!r}: {_brief(part)}" for name, part in batch.items()]
    elif isinstance(batch, (list, tuple)):
        parts = [_brief(part) for part in batch]
    else:
        return _brief(batch)
    shown = [*parts[:SHOWN], *(["..."] if len(parts) > SHOWN else [])]
    return (
        f"this {type(batch).__name__} of {len(parts)} ({', '.join(shown)})"
        if parts
        else f"an empty {type(batch).__name__}"
    )


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if not isinstance(shape, tuple) else f"{type(value).__name__} {tuple(shape)}"


def _look(value: Any, collated: bool, above: frozenset[int]) -> Evidence | None:
    """What ``value`` tells, which is inside the containers ``above``; None if nothing."""
    if isinstance(value, (str, bytes, Number)) or value is None or id(value) in above:
        return None
    if (size := _length_of_array(value)) is not None or _is_scalar(value):
        return None if size is None else _sure(size)
    if isinstance(value, PackedSequence):
        return _sure(int(value.batch_sizes[0]))
    if (size := _declared(value)) is not None:
        return _sure(size)
    parts, above = _parts(value), above | {id(value)}
    if parts is None:
        return None
    fields = _united([_look(part, collated, above) for part in parts])
    listed = isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
    return _of_list(value, fields, collated) if listed else fields


def _parts(value: Any) -> Collection[Any] | None:
    """What is in a container; None for a thing that is none."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        inside = (Mapping, list, tuple, PackedSequence)
        return [part for part in vars(value).values() if isinstance(part, inside) or _length_of_array(part) is not None]
    return None


def _united(found: Iterable[Evidence | None]) -> Evidence | None:
    """What several parts of one batch tell together."""
    parts = [part for part in found if part is not None]
    firm, loose = [part for part in parts if part.firm], [part for part in parts if not part.firm]
    if not firm or not loose:
        return _agreed(parts)
    told = _agreed(firm)
    if told is not None and told.known is None and told.possible:
        decided = _agreed([told, *loose])
        return told if decided is None or decided.known is None else dataclasses.replace(decided, firm=True)
    return told


def _agreed(parts: Sequence[Evidence]) -> Evidence | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    possible = frozenset.intersection(*(part.possible for part in parts))
    known = {part.known for part in parts if part.known in possible} or set(possible)
    return Evidence(possible, known.pop() if len(known) == 1 else None, parts[0].firm)


def _of_list(items: Sequence[Any], fields: Evidence | None, collated: bool) -> Evidence | None:
    """What a list tells whose items, as fields of one batch, tell ``fields``; they may be samples instead."""
    size, kind = len(items), kind_of_items(items)
    if kind is None or (kind == "number" and isinstance(items, tuple)):
        return fields  # of several kinds, as x and y are; or (224, 224), which is one thing
    if kind in ("text", "number") or (fields is None and kind != "empty"):
        return _sure(size, firm=False)
    if fields is None or (collated and fields.firm):
        return fields
    possible = fields.possible | {size}
    if possible == {size}:
        alone = isinstance(items, list) and size > FIELDS
        return Evidence(possible, size if fields.possible or alone else None, fields.firm)
    if kind == "array":
        return Evidence(possible, _of_arrays(items, fields), fields.firm)
    return Evidence(possible, size if isinstance(items, list) and size > FIELDS else None, fields.firm)


def _of_arrays(items: Sequence[Any], fields: Evidence) -> int | None:
    """Whether arrays of one type and number of dimensions are fields or samples, if that can be said."""
    first, image = items[0].shape, has_channels(items[0])
    if len(items) > FIELDS and len(first) <= 3 and all(item.shape == first for item in items):
        return len(items) if image and isinstance(items, list) else None
    return None if image else fields.known


def has_channels(value: Any) -> bool:
    """Whether it has the shape of an image: channels, height, width."""
    return is_array(value) and len(value.shape) == 3 and value.shape[0] in CHANNELS


def is_array(value: Any) -> bool:
    """Whether it is a tensor or an array with at least one dimension."""
    return _length_of_array(value) is not None


def kind_of_items(items: Sequence[Any]) -> Any:
    """What the items of a list all are; None where they differ, so that they cannot be samples of one kind."""
    kinds = {_kind_of(item) for item in items}
    kind = kinds.pop() if len(kinds) == 1 else "empty" if not items else None
    return "array" if isinstance(kind, tuple) and kind[0] == "array" else kind


def _kind_of(item: Any) -> Any:
    if isinstance(item, (str, bytes)):
        return "text"
    if isinstance(item, Number) or _is_scalar(item):
        return "number"
    if _length_of_array(item) is not None:
        return ("array", str(getattr(item, "dtype", None)), len(item.shape))
    return (type(item), frozenset(item)) if isinstance(item, Mapping) else type(item)


def _length_of_array(value: Any) -> int | None:
    """The first dimension of a tensor or array; None for what is neither, or has no dimension."""
    if isinstance(value, Tensor):
        return value.size(0) if value.ndim else None
    shape = getattr(value, "shape", None) if hasattr(value, "__array__") else None
    return int(shape[0]) if isinstance(shape, tuple) and shape else None


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0
    return hasattr(value, "__array__") and getattr(value, "shape", None) == ()


def _declared(value: Any) -> int | None:
    for name in DECLARED:
        size = getattr(value, name, None)
        if isinstance(size, tuple) and len(size) == 1:  # of a TensorDict
            size = size[0]
        if isinstance(size, int) and not isinstance(size, bool):
            return int(size)
    return None


def is_plain(value: Any) -> bool:
    """Whether it is made of numbers and text alone, so that there is no dimension along which samples could be."""
    if isinstance(value, (str, bytes, Number)) or _is_scalar(value):
        return True
    parts = _parts(value)
    return bool(parts) and all(part is None or is_plain(part) for part in parts)  # type: ignore[union-attr]


def _sure(size: int, firm: bool = True) -> Evidence:
    return Evidence(frozenset({size}), size, firm)
