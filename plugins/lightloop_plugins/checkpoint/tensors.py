"""Tensors as one file in the safetensors format, written in parts and read with every claim checked.

The format (https://huggingface.co/docs/safetensors): the length of the header in 8 bytes, the header as JSON, the bytes of
the tensors one after another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.tree import from_json

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
KINDS = {code: dtype for dtype, code in CODES.items()}
OTHERS = "dtypes"
"""The entry of the metadata that names the types for which safetensors has no code; they are stored as their bytes."""


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[memoryview]:
    """The file, in parts; tensors that need more alignment come first, then by name."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    others = {name: str(tensors[name].dtype) for name in names if tensors[name].dtype not in CODES}
    header: dict[str, Any] = {"__metadata__": {**(metadata or {}), **({OTHERS: json.dumps(others)} if others else {})}}
    start = 0
    for name in names:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        shape = [*tensor.shape, tensor.element_size()] if name in others else list(tensor.shape)
        header[name] = {
            "dtype": CODES.get(tensor.dtype, "U8"),
            "shape": shape,
            "data_offsets": [start, start + size],
        }
        start += size
    if not header["__metadata__"]:
        del header["__metadata__"]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER or len(names) > MAX_TENSORS:
        raise CheckpointError(f"{len(names)} tensors need a header of {len(text)} bytes; {MAX_HEADER} can be read back")
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in names:
        if tensors[name].numel():
            yield raw(tensors[name]).numpy().data


def raw(tensor: Tensor) -> Tensor:
    """The bytes of ``tensor``, row by row, as a tensor on the CPU."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(torch.uint8)


def from_bytes(data: bytearray, what: str) -> dict[str, Tensor]:
    """The tensors of a file, as views of ``data``.

    Raises:
        CheckpointError: if a type is unknown, or if shapes, offsets and size do not agree to the byte; ``what`` names it.
    """
    try:
        return _read(data, what)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {str(error)[:200]}") from None


def _read(data: bytearray, what: str) -> dict[str, Tensor]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(MAX_HEADER, len(data) - 8):
        raise ValueError(f"its header claims {length} bytes")
    header = from_json(bytes(data[8 : 8 + length]), what)
    metadata = header.pop("__metadata__", {})
    if len(header) > MAX_TENSORS:
        raise ValueError(f"it has {len(header)} tensors; {MAX_TENSORS} are read")
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
