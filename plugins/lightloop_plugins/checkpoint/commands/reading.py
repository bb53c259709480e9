"""Read parts of a checkpoint: a header, a file's hash, one tensor after another; never more than was asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, Self, cast

import torch
from torch import Tensor

from lightloop.toolkit import open_handle
from lightloop_plugins.checkpoint.commands.places import Place
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.header import Header, read_header
from lightloop_plugins.checkpoint.format.limits import check_size
from lightloop_plugins.checkpoint.format.manifest import STATE, TENSORS, Manifest
from lightloop_plugins.checkpoint.format.strict_json import MAX_JSON, from_json
from lightloop_plugins.checkpoint.format.tree import decode
from lightloop_plugins.checkpoint.sharded.index import INDEX, read_index
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.checkpoint.storage.remote import RemoteFolder


@contextmanager
def opened(place: Place, file: str) -> Iterator[IO[bytes]]:
    """A file of a checkpoint; links, pipes and directories are refused."""
    if isinstance(place.folder, RemoteFolder):
        with place.folder.fs.open(f"{place.folder.root}/{place.name}/{file}", "rb") as stream:
            yield stream
        return
    assert isinstance(place.folder, LocalFolder)
    with place.folder.opened(place.name) as inside:
        handle = open_handle(inside, file, os.O_RDONLY)
    with os.fdopen(handle, "rb") as stream:
        yield stream


def faults(place: Place, manifest: Manifest) -> dict[str, str]:
    """The files of a checkpoint whose bytes are not those that the manifest speaks of, each with what is wrong."""
    checked = ((file, _fault(place, file, *expected)) for file, expected in manifest.files.items())
    return {file: wrong for file, wrong in checked if wrong}


def _fault(place: Place, file: str, size: int, digest: str) -> str | None:
    count, sha = 0, hashlib.sha256()
    try:
        with opened(place, file) as stream:
            while count <= size and (part := stream.read(2**22)):
                count += len(part)
                sha.update(part)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if count > size:
        return f"has more than {size} bytes"
    if count < size:
        return f"has {count} bytes, not {size}"
    return None if sha.hexdigest() == digest else "has changed since it was written"


@dataclass(frozen=True)
class Slot:
    """A tensor of a checkpoint: what is known of it before it is read."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Mapping[str, tuple[int, ...] | None]
    """The files that have it under its name, and where in the tensor their part begins; None is all of it."""

    @property
    def size(self) -> int:
        """Bytes of the whole tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @property
    def kind(self) -> str:
        """Its type, for people."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.kind}{list(self.shape)}"


class Reader:
    """A checkpoint that is looked into; files stay open until it is closed.

    Raises:
        CheckpointError: if its manifest cannot be read.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.manifest = place.manifest()
        self.what = place.folder.describe(place.name)
        self._stack = ExitStack()
        self._open: dict[str, tuple[IO[bytes], Header]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def tensors(self) -> dict[str, Slot]:
        """Every tensor by name, by the headers alone."""
        header = self._file(TENSORS)[1]
        header.check_size(self.manifest.files[TENSORS][0], f"{TENSORS} of {self.what}")
        slots = {name: Slot(entry.dtype, entry.shape, {TENSORS: None}) for name, entry in header.entries.items()}
        if INDEX in self.manifest.files:
            index = read_index(self._verified(INDEX), self.manifest.files, f"{INDEX} of {self.what}")
            for name, entry in index.items():
                slots[name] = Slot(entry.dtype, entry.shape, {part.file: part.offsets for part in entry.parts})
        return slots

    def read(self, name: str, slot: Slot) -> Tensor:
        """The tensor ``name``, whole."""
        if slot.parts == {TENSORS: None}:
            stream, header = self._file(TENSORS)
            return header.entries[name].read(stream)
        whole = torch.empty(slot.shape, dtype=slot.dtype)
        for file, offsets in slot.parts.items():
            stream, header = self._file(file)
            block = header.entries[name].read(stream)
            target = whole
            for dim, (start, length) in enumerate(zip(offsets or (), block.shape, strict=True)):
                target = target.narrow(dim, start, length)
            target.copy_(block)
        return whole

    def state(self) -> Any:
        """The state, with a :class:`Named` slot in place of each tensor; the hash of its file is verified."""
        slots = {name: Named(name, slot) for name, slot in self.tensors().items()}
        return decode(from_json(self._verified(STATE), f"{STATE} of {self.what}"), cast(Mapping[str, Tensor], slots))

    def values(self) -> dict[str, Any]:
        """Every value in the state by its path, in the order of the state."""
        found: dict[str, Any] = {}
        _flatten(self.state(), (), found)
        return found

    def verify(self) -> None:
        """Refuse a checkpoint in which a file is damaged."""
        for file, wrong in faults(self.place, self.manifest).items():
            raise CheckpointError(f"{self.what} is damaged: {file} {wrong}")

    def _verified(self, file: str) -> bytes:
        size, digest = self.manifest.files[file]
        check_size(size, f"{file} of {self.what}", MAX_JSON)
        data = bytes(self.place.folder.read(self.place.name, file, size))
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise CheckpointError(f"{self.what} is damaged: {file} has changed since it was written")
        return data

    def _file(self, file: str) -> tuple[IO[bytes], Header]:
        if file not in self._open:
            stream = self._stack.enter_context(opened(self.place, file))
            self._open[file] = stream, read_header(stream, f"{file} of {self.what}")
        return self._open[file]


@dataclass(frozen=True)
class Named:
    """A tensor in a state: its name and what is known of it."""

    name: str
    slot: Slot

    def __str__(self) -> str:
        return str(self.slot)


def _flatten(value: Any, path: tuple[str, ...], into: dict[str, Any]) -> None:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            _flatten(part, (*path, str(key)), into)
    elif isinstance(value, (list, tuple)) and value:
        for index, part in enumerate(value):
            _flatten(part, (*path, str(index)), into)
    else:
        into[".".join(path)] = value
