"""What a safetensors file says of itself: names, types, shapes and places of its tensors, without reading any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.safetensors import KINDS, MAX_HEADER, OTHERS, parse_header
from lightloop_plugins.checkpoint.format.strict_json import from_json

_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@dataclass(frozen=True)
class Entry:
    """One tensor in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Its first byte, counted from the beginning of the file."""
    size: int
    """How many bytes it has."""

    def read(self, stream: IO[bytes]) -> Tensor:
        """The tensor, in memory of its own."""
        data = bytearray(self.size)
        stream.seek(self.start)
        view, at = memoryview(data), 0
        while part := stream.read(min(2**24, self.size - at)):
            view[at : at + len(part)] = part
            at += len(part)
        if at < self.size:
            raise CheckpointError(f"the file ends {self.size - at} bytes too early")
        if not data:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Header:
    """All tensors of a file by name, and its metadata."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]

    def check_size(self, size: int, what: str) -> None:
        """Refuse a file of ``size`` bytes that is longer or shorter than its tensors."""
        end = max((entry.start + entry.size for entry in self.entries.values()), default=size)
        if end != size:
            raise CheckpointError(
                f"{what} is damaged or not Lightloop's: it has {size} bytes where its header says {end}"
            )


def read_header(stream: IO[bytes], what: str) -> Header:
    """Read the header at the beginning of ``stream`` and nothing else.

    Raises:
        CheckpointError: if it is none; ``what`` names it.
    """
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= MAX_HEADER:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: its header claims {length} bytes")
    found = parse_header(stream.read(length), what)
    try:
        metadata = found.pop("__metadata__", {})
        others = from_json(metadata[OTHERS].encode(), what) if OTHERS in metadata else {}
        entries = {name: _entry(entry, others.get(name), 8 + length) for name, entry in found.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {str(error)[:200]}") from None
    return Header(entries, metadata)


def _entry(entry: Mapping[str, Any], other: str | None, data: int) -> Entry:
    start, end = entry["data_offsets"]
    shape, dtype = entry["shape"], KINDS[entry["dtype"]]
    if any(type(size) is not int or size < 0 for size in (*shape, start, end)) or len(shape) > 64:
        raise ValueError("a tensor has no possible shape")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"a tensor claims shape {str(shape)[:100]} in {end - start} bytes")
    if other is not None:  # stored as its bytes, of which the last dimension is one value
        dtype, shape = _DTYPES[other], shape[:-1]
    return Entry(dtype, tuple(shape), data + start, end - start)
