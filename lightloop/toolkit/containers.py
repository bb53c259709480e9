"""Map over nested containers, keeping their types."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch.nn.utils.rnn import PackedSequence


def map_leaves(
    function: Callable[[Any, str], Any],
    tree: Any,
    *,
    is_leaf: Callable[[Any, str], bool] | None = None,
    path: str = "",
) -> Any:
    """Return a copy of ``tree`` with ``function(leaf, path)`` in place of each leaf; container types are kept.

    Containers are mappings, lists, tuples, named tuples and dataclasses. All else is a leaf: tensors, PackedSequence,
    strings, numbers, None, and objects of other types.

    Args:
        function: given a leaf and its path: the keys, indices and field names that lead to it, joined by dots.
        tree: any nesting of containers; a leaf alone has the path "".
        is_leaf: says of a container, by value and path, that it is to be taken as a leaf.
        path: where ``tree`` itself is.
    """

    def inner(value: Any, name: object) -> Any:
        return map_leaves(function, value, is_leaf=is_leaf, path=f"{path}.{name}" if path else str(name))

    if isinstance(tree, PackedSequence) or (is_leaf is not None and is_leaf(tree, path)):
        return function(tree, path)
    if isinstance(tree, Mapping):
        return _mapping(tree, {key: inner(value, key) for key, value in tree.items()})
    if isinstance(tree, tuple):
        fields = getattr(tree, "_fields", None)
        values = [inner(value, name) for name, value in zip(fields or range(len(tree)), tree, strict=True)]
        return type(tree)(*values) if fields else type(tree)(values)
    if isinstance(tree, list):
        listed = copy.copy(tree)
        listed[:] = [inner(value, index) for index, value in enumerate(tree)]
        return listed
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        record = copy.copy(tree)
        for field in dataclasses.fields(tree):
            object.__setattr__(record, field.name, inner(getattr(tree, field.name), field.name))
        return record
    return function(tree, path)


def _mapping(like: Mapping[Any, Any], parts: dict[Any, Any]) -> Mapping[Any, Any]:
    """A mapping with ``parts``, of the type of ``like`` and with its other attributes."""
    if not isinstance(like, MutableMapping):
        return type(like)(parts)  # type: ignore[call-arg]
    mapping = copy.copy(like)
    for key, value in parts.items():
        mapping[key] = value
    return mapping
