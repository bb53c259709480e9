"""Plain trees as what JSON can hold and tensors, and back: no code is stored, and none is run by reading."""

from __future__ import annotations

import math
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format import sparse

MAX_DEPTH = 64
"""How deep a tree may be."""
MAX_DIGITS = 100
"""Of a whole number that needs more than 64 bits, as numpy's generators have."""

MARK = "$"
PLAIN = "None, bool, int, float, complex, str, bytes, tensors, numpy's numbers and arrays, and lists, tuples, sets, deques and dicts of these"
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_TEXT = {str}

Tensors = dict[str, Tensor]


class Encoded:
    """A part of a tree that :func:`encode` has gone through already, perhaps in another process."""

    def __init__(self, value: Any) -> None:
        self.value = value


def encode(tree: Any, tensors: Tensors, path: str = "") -> Any:
    """``tree`` as what JSON can hold; its tensors go to ``tensors`` under the path at which they are, keys joined by dots.

    Raises:
        CheckpointError: if something in it is neither a container, a number, a string nor a tensor; it names the path.
    """
    return _encode(tree, path, tensors, 0)


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that :func:`encode` made ``value`` of."""
    return _decode(value, tensors, 0)


def mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """``tree`` with ``leaf`` of everything in it that is no container."""
    if isinstance(tree, dict):
        return type(tree)({key: mapped(part, leaf) for key, part in tree.items()})
    if isinstance(tree, deque):
        return deque((mapped(part, leaf) for part in tree), tree.maxlen)
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(part, leaf) for part in tree)
    return leaf(tree)


# A save goes through some hundred values, nearly all of the types in _ENCODERS: to look one up is what is fast.


def _encode(value: Any, path: str, tensors: Tensors, depth: int) -> Any:
    encoder = _ENCODERS.get(type(value), _encode_other)
    return value if encoder is None else encoder(value, path, tensors, depth)


def _encode_int(value: int, path: str, tensors: Tensors, depth: int) -> Any:
    return value if -(2**63) <= value < 2**63 else {MARK: "int", "v": str(value)}


def _encode_float(value: float, path: str, tensors: Tensors, depth: int) -> Any:
    return value if math.isfinite(value) else {MARK: "float", "v": repr(value)}


def _encode_dict(value: dict[Any, Any], path: str, tensors: Tensors, depth: int) -> Any:
    if MARK in value or set(map(type, value)) - _TEXT:
        return _encode_pairs(value, path, tensors, depth)
    start, made = _start(path, depth), {}
    for key, item in value.items():
        encoder = _ENCODERS.get(type(item), _encode_other)
        made[key] = item if encoder is None else encoder(item, start + key, tensors, depth + 1)
    return made


def _encode_pairs(value: dict[Any, Any], path: str, tensors: Tensors, depth: int) -> Any:
    if any(isinstance(key, Tensor) for key in value):
        raise CheckpointError(f"{path or 'the state'}: a tensor cannot be the key of a dict")
    start = _start(path, depth)
    pairs = [
        [_encode(part, f"{start}{key}", tensors, depth + 1) for part in (key, item)] for key, item in value.items()
    ]
    return {MARK: type(value).__name__, "v": pairs}


def _encode_list(value: Iterable[Any], path: str, tensors: Tensors, depth: int) -> Any:
    start = _start(path, depth)
    return [_encode(item, f"{start}{index}", tensors, depth + 1) for index, item in enumerate(value)]


def _encode_tuple(value: tuple[Any, ...], path: str, tensors: Tensors, depth: int) -> Any:
    return {MARK: "tuple", "v": _encode_list(value, path, tensors, depth)}


def _encode_deque(value: deque[Any], path: str, tensors: Tensors, depth: int) -> Any:
    return {MARK: "deque", "v": [value.maxlen, _encode_list(value, path, tensors, depth)]}


def _encode_set(value: Iterable[Any], path: str, tensors: Tensors, depth: int) -> Any:
    return {MARK: type(value).__name__, "v": _encode_list(sorted(value, key=repr), path, tensors, depth)}


def _encode_tensor(value: Tensor, path: str, tensors: Tensors, depth: int) -> Any:
    if value.is_quantized or value.is_meta or value.is_nested:
        kind = "quantized" if value.is_quantized else "nested" if value.is_nested else "without values"
        raise CheckpointError(
            f"{path or 'the state'}: a tensor that is {kind} cannot be stored: dequantize it, or store what it is made of"
        )
    if value.layout is not torch.strided:
        layout, parts = sparse.taken(value, path)
        return {MARK: "sparse", "v": [layout, _encode_dict(parts, path, tensors, depth)]}
    name = path or "the state"
    while name in tensors:  # two keys may read the same, such as 1 and "1"
        name += "'"
    tensors[name] = value.detach() if value.requires_grad else value
    return {MARK: "tensor", "v": name}


def _encode_other(value: Any, path: str, tensors: Tensors, depth: int) -> Any:
    """A subclass of what can be stored, as what it is a subclass of."""
    if isinstance(value, Tensor):
        return _encode_tensor(value, path, tensors, depth)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc":
        kept = torch.from_numpy(numpy.array(value))
        number = isinstance(value, numpy.generic)
        return {MARK: "numpy", "v": [number, _encode_tensor(kept, path, tensors, depth)]}
    for kind in (str, int, float):
        if isinstance(value, kind):
            return _encode(kind(value), path, tensors, depth)
    raise CheckpointError(
        f"{path or 'the state'}: {type(value).__module__}.{type(value).__qualname__} cannot be stored; what can is {PLAIN}. "
        "Turn it into these in state_dict and back in load_state_dict"
    )


def _start(path: str, depth: int) -> str:
    """How the paths of what is in a container begin."""
    if depth > MAX_DEPTH - 2:
        start = ".".join(path.split(".")[:6])
        raise CheckpointError(f"{start} … is nested deeper than {MAX_DEPTH}, or contains itself: store it flat")
    return f"{path}." if path else ""


_ENCODERS: dict[type, Callable[[Any, str, Tensors, int], Any] | None] = {
    **dict.fromkeys((str, bool, type(None))),  # as they are
    int: _encode_int,
    float: _encode_float,
    dict: _encode_dict,
    OrderedDict: _encode_pairs,
    Counter: _encode_pairs,
    list: _encode_list,
    tuple: _encode_tuple,
    torch.Size: _encode_tuple,
    deque: _encode_deque,
    set: _encode_set,
    frozenset: _encode_set,
    complex: lambda value, path, tensors, depth: {MARK: "complex", "v": [repr(value.real), repr(value.imag)]},
    bytes: lambda value, path, tensors, depth: {MARK: "bytes", "v": value.hex()},
    Tensor: _encode_tensor,
    nn.Parameter: _encode_tensor,
    torch.dtype: lambda value, path, tensors, depth: {MARK: "dtype", "v": str(value)},
    torch.device: lambda value, path, tensors, depth: {MARK: "device", "v": str(value)},
    Encoded: lambda value, path, tensors, depth: value.value,
}


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


def _length(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError("no possible length")
    return value


def _numpy(number: bool, tensor: Tensor) -> Any:
    array = tensor.numpy()
    return array[()] if number else array


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
    "deque": lambda value, tensors, depth: deque(_decode(value[1], tensors, depth + 1), _length(value[0])),
    "set": lambda items, tensors, depth: set(_decode(items, tensors, depth + 1)),
    "frozenset": lambda items, tensors, depth: frozenset(_decode(items, tensors, depth + 1)),
    "complex": lambda parts, tensors, depth: complex(float(parts[0]), float(parts[1])),
    "bytes": lambda text, tensors, depth: bytes.fromhex(text),
    "numpy": lambda value, tensors, depth: _numpy(value[0], _decode(value[1], tensors, depth + 1)),
    "sparse": lambda value, tensors, depth: sparse.made(value[0], _decode(value[1], tensors, depth + 1)),
}
