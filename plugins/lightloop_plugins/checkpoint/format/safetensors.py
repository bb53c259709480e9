"""Tensors as one file in the safetensors format, written in parts and read with every claim checked.

The format (https://huggingface.co/docs/safetensors): the length of the header in 8 bytes, the header as JSON, the bytes of
the tensors one after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.strict_json import from_json, to_json

MAX_HEADER = 10 * 2**20
"""Bytes of a header that are read at most."""
MAX_TENSORS = 100_000
"""Tensors of a file that are read at most."""

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
PIECE = 2**18
"""Tensors of fewer bytes are written together up to so many."""
_NUMPYS = frozenset(
    (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
)
KINDS = {code: dtype for dtype, code in CODES.items()}
OTHERS = "dtypes"
"""The entry of the metadata that names the types for which safetensors has no code; they are stored as their bytes."""


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[memoryview]:
    """The file, in parts; tensors that need more alignment come first, then by name."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    return _gathered(chain([_header(ordered, metadata)], (raw(tensor) for _, tensor in ordered)))


def _header(tensors: list[tuple[str, Tensor]], metadata: Mapping[str, str] | None) -> memoryview:
    header: dict[str, Any] = {"__metadata__": dict(metadata or {})}
    others, start = {}, 0
    for name, tensor in tensors:
        dtype, shape, end = tensor.dtype, list(tensor.shape), start + tensor.nbytes
        if (code := CODES.get(dtype)) is None:
            others[name], code, shape = str(dtype), "U8", [*shape, dtype.itemsize]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
        start = end
    if others:
        header["__metadata__"][OTHERS] = to_json(others).decode()
    if not header["__metadata__"]:
        del header["__metadata__"]
    text = to_json(header)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER or len(tensors) > MAX_TENSORS:
        raise CheckpointError(
            f"{len(tensors)} tensors need a header of {len(text)} bytes; {MAX_HEADER} can be read back"
        )
    return memoryview(len(text).to_bytes(8, "little") + text)


def _gathered(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes, small parts together: each that is written is a call to the file system."""
    waiting: list[memoryview] = []
    length = 0
    for part in parts:
        if waiting and length + part.nbytes > PIECE:
            yield memoryview(b"".join(waiting))
            waiting, length = [], 0
        if part.nbytes > PIECE:
            yield part
        else:
            waiting.append(part)
            length += part.nbytes
    if waiting:
        yield memoryview(b"".join(waiting))


def raw(tensor: Tensor) -> memoryview:
    """The bytes of ``tensor``, row by row."""
    if tensor.dtype in _NUMPYS:
        array = tensor.numpy(force=True)
        return array.data.cast("B") if array.flags.c_contiguous and array.size else memoryview(array.tobytes())
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(torch.uint8).numpy().data


def from_bytes(data: bytearray, what: str) -> dict[str, Tensor]:
    """The tensors of a file, as views of ``data``.

    Raises:
        CheckpointError: if a type is unknown, or if shapes, offsets and size do not agree to the byte; ``what`` names it.
    """
    try:
        return _read(data, what)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {str(error)[:200]}") from None


def parse_header(text: bytes, what: str) -> dict[str, Any]:
    """The JSON of a header, unless it is of too many tensors; each is an object in it, and they are counted in no time."""
    if (tensors := text.count(b"{") - 1) > MAX_TENSORS + 1:  # one more may be the metadata
        raise CheckpointError(
            f"{what} is damaged or not Lightloop's: it has {tensors:,} tensors; {MAX_TENSORS:,} are read"
        )
    header: dict[str, Any] = from_json(text, what)
    return header


def _read(data: bytearray, what: str) -> dict[str, Tensor]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(MAX_HEADER, len(data) - 8):
        raise ValueError(f"its header claims {length} bytes")
    header = parse_header(bytes(data[8 : 8 + length]), what)
    metadata = header.pop("__metadata__", {})
    others = from_json(metadata[OTHERS].encode(), what) if OTHERS in metadata else {}
    names = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    spans = sorted((_span(name, entry), name) for name, entry in header.items())
    result, at = {}, 0
    for (start, end), name in spans:
        if start != at:
            raise ValueError(f"its tensors overlap or leave gaps at {name[:100]!r}")
        at, entry = end, header[name]
        tensor = _view(data, 8 + length + start, end - start, KINDS[entry["dtype"]]).reshape(entry["shape"])
        result[name] = tensor.view(names[others[name]]).reshape(entry["shape"][:-1]) if name in others else tensor
    if 8 + length + at != len(data):
        raise ValueError(f"it has {len(data)} bytes where its header speaks of {8 + length + at}")
    return result


def _span(name: str, entry: Any) -> tuple[int, int]:
    start, end = entry["data_offsets"]
    shape, dtype = entry["shape"], KINDS[entry["dtype"]]
    if any(type(size) is not int or size < 0 for size in (*shape, start, end)) or len(shape) > 64:
        raise ValueError(f"{name[:100]!r} has no possible shape")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name[:100]!r} claims shape {str(shape)[:100]} in {end - start} bytes")
    return start, end


def _view(data: bytearray, start: int, size: int, dtype: torch.dtype) -> Tensor:
    if not size:
        return torch.empty(0, dtype=dtype)
    if start + size > len(data):
        raise ValueError("a tensor reaches beyond its end")
    if start % dtype.itemsize:  # only files of others are laid out so
        return torch.frombuffer(bytearray(data[start : start + size]), dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=size // dtype.itemsize, offset=start)
