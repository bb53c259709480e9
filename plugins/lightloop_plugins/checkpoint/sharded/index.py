"""The index of tensors that several ranks have written: which part of each is in which file, read with every claim checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.safetensors import MAX_TENSORS
from lightloop_plugins.checkpoint.format.strict_json import from_json, to_json

INDEX = "shards.json"
MAX_COMPARISONS = 100_000
"""How many pairs of parts are looked at for overlaps before an index is refused."""
_FILE = re.compile(r"shard-[0-9]{5,9}\.safetensors")
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@dataclass(frozen=True)
class Part:
    """A block of a tensor, and the file that has it under the tensor's name."""

    file: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A tensor in parts."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    placements: tuple[int | None, ...] | None
    """Along which dimension each dimension of the mesh had split it, if any; None is a tensor of one rank alone."""
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


def shard_file(rank: int) -> str:
    """The file that a rank writes."""
    return f"shard-{rank:05d}.safetensors"


def write_index(entries: Mapping[str, Entry]) -> bytes:
    """The bytes of shards.json."""
    return to_json(
        {
            name: {
                "dtype": str(entry.dtype),
                "shape": list(entry.shape),
                "placements": None if entry.placements is None else list(entry.placements),
                "parts": [[part.file, list(part.offsets), list(part.sizes)] for part in entry.parts],
            }
            for name, entry in entries.items()
        }
    )


def read_index(data: bytes, files: Mapping[str, tuple[int, str]], what: str) -> dict[str, Entry]:
    """Read shards.json and hold it against the sizes of the files of the checkpoint.

    Raises:
        CheckpointError: if a part is in no file of the checkpoint or outside its tensor, if parts overlap or do not make up
            the tensor, or if they are larger than the files; ``what`` names the index.
    """
    document = from_json(data, what)
    try:
        if len(document) > MAX_TENSORS:
            raise ValueError(f"it has {len(document)} tensors; {MAX_TENSORS} are read")
        entries = {name: _entry(value) for name, value in document.items()}
        sizes: dict[str, int] = {}
        budget = [MAX_COMPARISONS]
        for name, entry in entries.items():
            _check_cover(name, entry, budget)
            for part in entry.parts:
                sizes[part.file] = sizes.get(part.file, 0) + math.prod(part.sizes) * entry.dtype.itemsize
        for file, size in sizes.items():
            if not _FILE.fullmatch(file) or file not in files:
                raise ValueError(f"{file[:100]!r} is no file of the checkpoint")
            if size > files[file][0]:
                raise ValueError(f"it claims {size} bytes in {file}, which has {files[file][0]}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {str(error)[:200]}") from None
    return entries


def _entry(value: Any) -> Entry:
    if set(value) != {"dtype", "shape", "placements", "parts"} or not isinstance(value["parts"], list):
        raise ValueError("an entry has other keys than it should")
    placements = value["placements"]
    if placements is not None:
        placements = tuple(None if each is None else _whole([each])[0] for each in placements)
    shape = _whole(value["shape"])
    if len(shape) > 64 or (
        placements is not None and any(each is not None and each >= len(shape) for each in placements)
    ):
        raise ValueError("a tensor has no possible shape")
    parts = []
    for file, offsets, sizes in value["parts"]:
        if not isinstance(file, str):
            raise ValueError("a part has no file")
        parts.append(Part(file, _whole(offsets), _whole(sizes)))
    return Entry(_DTYPES[value["dtype"]], shape, placements, tuple(parts))


def _whole(numbers: Iterable[Any]) -> tuple[int, ...]:
    result = tuple(numbers)
    if any(type(number) is not int or not 0 <= number < 2**48 for number in result):
        raise ValueError("a size or an offset is no whole number from 0")
    return result


def _check_cover(name: str, entry: Entry, budget: list[int]) -> None:
    """That the parts lie inside the tensor, none over another, and are as many elements as it has."""
    for part in entry.parts:
        if not len(part.offsets) == len(part.sizes) == len(entry.shape):
            raise ValueError(f"a part of {name[:100]!r} has another number of dimensions")
        if any(o + s > whole for o, s, whole in zip(part.offsets, part.sizes, entry.shape, strict=True)):
            raise ValueError(f"a part of {name[:100]!r} reaches beyond its shape")
    if sum(math.prod(part.sizes) for part in entry.parts) != math.prod(entry.shape):
        raise ValueError(f"the parts of {name[:100]!r} do not make up its shape")
    if len({part.file for part in entry.parts}) != len(entry.parts):
        raise ValueError(f"{name[:100]!r} has several parts in one file")
    parts = [part for part in entry.parts if math.prod(part.sizes)]
    if len(parts) < 2:
        return
    along = max(range(len(entry.shape)), key=lambda dim: len({part.offsets[dim] for part in parts}))
    parts.sort(key=lambda part: part.offsets[along])
    for index, part in enumerate(parts):
        end = part.offsets[along] + part.sizes[along]
        for other in parts[index + 1 :]:
            if other.offsets[along] >= end:
                break
            budget[0] -= 1
            if budget[0] < 0:
                raise ValueError("its tensors are in too many parts to be compared")
            if _overlap(part, other):
                raise ValueError(f"parts of {name[:100]!r} overlap")


def _overlap(one: Part, other: Part) -> bool:
    return all(
        a < b + n and b < a + m for a, m, b, n in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )


Read = Callable[[str], Mapping[str, Tensor]]
"""Gives the tensors of one file of a checkpoint, verified."""


class Stored(Tensor):
    """A tensor that is in a checkpoint and has not been read: its shape and type are there, its values are not."""

    key: str
    source: Source

    @classmethod
    def of(cls, name: str, source: Source) -> Stored:
        """The tensor ``name`` of ``source``."""
        entry = source.entries[name]
        stored = torch.empty(entry.shape, dtype=entry.dtype, device="meta").as_subclass(cls)
        stored.key, stored.source = name, source
        return stored


@dataclass(frozen=True)
class Source:
    """Where the values of stored tensors are."""

    entries: Mapping[str, Entry]
    read: Read

    def all(self) -> dict[str, Tensor]:
        """Each of its tensors, unread."""
        return {name: Stored.of(name, self) for name in self.entries}
