"""Plain trees as JSON and tensors, and back: no code is stored, and none is run by reading."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError

MAX_JSON = 64 * 2**20
"""Bytes of JSON that are read at most."""
MAX_DEPTH = 64
"""How deep a tree may be."""
MAX_DIGITS = 100
"""Of a whole number that needs more than 64 bits, as numpy's generators have."""

MARK = "$"
PLAIN = "None, bool, int, float, str, tensors, and lists, tuples and dicts of these"
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class Encoded:
    """A part of a tree that :func:`encode` has gone through already, perhaps in another process."""

    def __init__(self, value: Any) -> None:
        self.value = value


def encode(tree: Any, tensors: dict[str, Tensor], path: tuple[str, ...] = ()) -> Any:
    """``tree`` as what JSON can hold; its tensors go to ``tensors`` under the path at which they are.

    Raises:
        CheckpointError: if something in it is neither a container, a number, a string nor a tensor; it names the path.
    """
    return _encode(tree, path, tensors)


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that :func:`encode` made ``value`` of."""
    return _decode(value, tensors, 0)


def mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """``tree`` with ``leaf`` of everything in it that is no container."""
    if isinstance(tree, dict):
        return type(tree)({key: mapped(part, leaf) for key, part in tree.items()})
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(part, leaf) for part in tree)
    return leaf(tree)


def to_json(value: Any) -> bytes:
    """The one form in which JSON is written: sorted keys would lose the order of a dict, so they stay as they are."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode()


def from_json(data: bytes, what: str) -> Any:
    """Read JSON from a stranger: bounded in size, depth and numbers, without duplicate keys or constants such as NaN.

    Raises:
        CheckpointError: if it is not such; ``what`` names it.
    """
    if len(data) > MAX_JSON:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {len(data)} bytes of JSON; {MAX_JSON} are read")
    try:
        value = json.loads(
            data.decode("ascii"),
            object_pairs_hook=_unique,
            parse_int=_whole,
            parse_constant=_constant,
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {error}") from None
    _check_depth(value, what)
    return value


def _encode(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if len(path) > MAX_DEPTH - 2:
        raise CheckpointError(
            f"{_show(path[:6])} … is nested deeper than {MAX_DEPTH}, or contains itself: store it flat"
        )
    if value is None or isinstance(value, (bool, str)):
        return value if type(value) in (bool, str, type(None)) else str(value)
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else {MARK: "int", "v": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {MARK: "float", "v": repr(float(value))}
    if isinstance(value, Tensor):
        return _encode_tensor(value, path, tensors)
    if isinstance(value, (torch.dtype, torch.device)):
        return {MARK: type(value).__name__, "v": str(value)}
    if type(value) in _MAPPINGS:
        return _encode_mapping(value, path, tensors)
    if isinstance(value, Encoded):
        return value.value
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
        items = [_encode(item, (*path, str(index)), tensors) for index, item in enumerate(value)]
        return items if type(value) is list else {MARK: "tuple", "v": items}
    raise CheckpointError(
        f"{_show(path)}: {type(value).__module__}.{type(value).__qualname__} cannot be stored; what can is {PLAIN}. "
        "Turn it into these in state_dict and back in load_state_dict"
    )


def _encode_mapping(value: Mapping[Any, Any], path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    kind = _MAPPINGS[type(value)]
    if kind == "dict" and all(type(key) is str and not key.startswith(MARK) for key in value):
        return {key: _encode(item, (*path, key), tensors) for key, item in value.items()}
    pairs = []
    for key, item in value.items():
        if isinstance(key, Tensor):
            raise CheckpointError(f"{_show(path)}: a tensor cannot be the key of a dict")
        inner = (*path, str(key))
        pairs.append([_encode(key, inner, tensors), _encode(item, inner, tensors)])
    return {MARK: kind, "v": pairs}


def _encode_tensor(value: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise CheckpointError(
            f"{_show(path)}: a tensor must be dense and have values to be stored; this {type(value).__name__} is "
            f"{value.layout} on {value.device}"
        )
    name = _show(path)
    while name in tensors:  # two keys may read the same, such as 1 and "1"
        name += "'"
    tensors[name] = value.detach()
    return {MARK: "tensor", "v": name}


def _decode(value: Any, tensors: Mapping[str, Tensor], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise CheckpointError(f"the state is nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return [_decode(item, tensors, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(MARK)
    if kind is None:
        return {key: _decode(item, tensors, depth + 1) for key, item in value.items()}
    if set(value) != {MARK, "v"} or not isinstance(kind, str) or kind not in _DECODERS:
        raise CheckpointError(f"the state has an entry of the unknown kind {str(kind)[:60]!r}")
    try:
        return _DECODERS[kind](value["v"], tensors, depth)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"the state has a broken {kind}: {str(error)[:200]}") from None


def _decode_pairs(make: Callable[[Iterable[Any]], Any]) -> Callable[..., Any]:
    def read(pairs: Any, tensors: Mapping[str, Tensor], depth: int) -> Any:
        return make([(_decode(k, tensors, depth + 1), _decode(v, tensors, depth + 1)) for k, v in pairs])

    return read


def _decode_int(text: Any, tensors: Mapping[str, Tensor], depth: int) -> int:
    if not isinstance(text, str) or len(text) > MAX_DIGITS:
        raise ValueError("too long")
    return int(text)


_DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor], int], Any]] = {
    "tensor": lambda name, tensors, depth: tensors[name],
    "int": _decode_int,
    "float": lambda text, tensors, depth: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text],
    "dtype": lambda text, tensors, depth: _DTYPES[text],
    "device": lambda text, tensors, depth: torch.device(text),
    "tuple": lambda items, tensors, depth: tuple(_decode(item, tensors, depth + 1) for item in items),
    "dict": _decode_pairs(dict),
    "OrderedDict": _decode_pairs(OrderedDict),
    "Counter": _decode_pairs(lambda pairs: Counter(dict(pairs))),
}


def _show(path: tuple[str, ...]) -> str:
    return ".".join(path) or "the state"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError("a whole number does not fit in 64 bits")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _check_depth(value: Any, what: str) -> None:
    level = [value]
    for _ in range(2 * MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise CheckpointError(f"{what} is damaged or not Lightloop's: it is nested deeper than {2 * MAX_DEPTH}")
