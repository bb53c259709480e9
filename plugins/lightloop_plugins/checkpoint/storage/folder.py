"""Where checkpoints are kept: each appears whole or not at all, and is never changed."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.limits import check_sizes
from lightloop_plugins.checkpoint.format.manifest import (
    MANIFEST,
    MAX_MANIFEST,
    STATE,
    TENSORS,
    Manifest,
    read_manifest,
)
from lightloop_plugins.checkpoint.format.safetensors import from_bytes, to_bytes
from lightloop_plugins.checkpoint.format.schema import STATES, check_form
from lightloop_plugins.checkpoint.format.strict_json import excess, from_json, to_json
from lightloop_plugins.checkpoint.format.tree import decode, encode
from lightloop_plugins.checkpoint.sharded.index import INDEX, Source, read_index

FOLDER = "checkpoints"
"""What the folder of checkpoints is called in a run's directory."""
PREFIX = "step-"
"""How the name of a checkpoint begins."""
EXCEPTION = "exception-"
"""How the name of one begins that an error had made; it is not taken for the newest."""
BAD, DEAD, TEMPORARY = ".bad-", ".dead-", ".tmp-"
Shards = Literal["whole", "verified", "unread"]
"""What becomes of tensors that several ranks have written: they are put together, or verified and read later, or read later."""


@dataclass(frozen=True)
class Content:
    """A state that is ready to be written, as long as nobody changes its tensors."""

    state: bytes
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, tree: Any, split: bool = False) -> Content:
        """Read ``tree`` through; whatever cannot be stored is refused by its path.

        Args:
            tree: the state.
            split: whether tensors may be split over several ranks (DTensor).
        """
        tensors: dict[str, Tensor] = {}
        state = to_json(encode(tree, tensors))
        for name, tensor in tensors.items():
            if type(tensor) is not Tensor and hasattr(tensor, "to_local") and not split:
                raise CheckpointError(
                    f"{name} is one rank's share of a tensor: store it whole, as full_tensor() gives it"
                )
        if (more := excess(state)) is not None:
            raise CheckpointError(
                f"the state has, beside its tensors, {more} back: store long lists of numbers as tensors"
            )
        return cls(state, tensors)

    def frozen(self) -> Content:
        """The same, in memory of its own on the CPU: training may go on."""
        return replace(self, tensors={n: t.detach().to("cpu", copy=True) for n, t in self.tensors.items()})

    def save(self, folder: Folder, name: str, body: Mapping[str, Any]) -> None:
        """Add it to ``folder`` as the checkpoint ``name``."""
        folder.write(name, self, body)

    def write(self, folder: Folder, place: str) -> dict[str, tuple[int, str]]:
        """Write the files into the directory ``place`` of ``folder``; the size and hash of each."""
        return {file: folder.put(place, file, parts) for file, parts in self.files().items()}

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.state) + sum(tensor.nbytes for tensor in self.tensors.values())

    def files(self) -> dict[str, Iterator[memoryview]]:
        """The bytes of each file, in parts."""
        return {TENSORS: to_bytes(self.tensors), STATE: iter([memoryview(self.state)])}


class Folder(ABC):
    """A place with checkpoints in it, each a directory of its own, and perhaps other things, which it leaves alone."""

    place: str
    """What the user calls it."""

    def __init__(self, place: str) -> None:
        self.place = place

    @abstractmethod
    def names(self) -> list[str]:
        """The checkpoints, whatever state they are in."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is anything under the name of a checkpoint."""

    @abstractmethod
    def read(self, name: str, file: str, limit: int) -> bytearray:
        """The bytes of one file of a checkpoint, at most ``limit``."""

    @abstractmethod
    def files(self, name: str) -> list[str]:
        """The names of the files of a checkpoint."""

    @abstractmethod
    def write(self, name: str, content: Content, body: Mapping[str, Any]) -> None:
        """Add a checkpoint; it is complete and durable on return, and absent after an error."""

    @abstractmethod
    def put(self, place: str, file: str, parts: Iterable[memoryview]) -> tuple[int, str]:
        """Write a new file, durably, into a directory that a checkpoint will be made of; its size and hash."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a checkpoint; nobody can take what a crash leaves of it for one."""

    @abstractmethod
    def set_aside(self, name: str) -> str:
        """Give a damaged checkpoint a name under which it is evidence and nothing else; that name."""

    def hold(self) -> None:  # noqa: B027 - a place without locks has nothing to do
        """Become the one writer, and change nothing yet; nothing happens where it is that already."""

    def open(self, run: str) -> None:  # noqa: B027
        """Become the one writer, as which ``run`` is known, and clear what writers that died have left of themselves."""

    def close(self) -> None:  # noqa: B027
        """Let others write."""

    def last_run(self) -> str | None:
        """The run that wrote here last, where that is known."""
        return None

    def describe(self, name: str) -> str:
        """How an error names a checkpoint."""
        return f"checkpoint {self.place.rstrip('/')}/{name}"

    def manifest(self, name: str) -> Manifest:
        """What a checkpoint says of itself.

        Raises:
            CheckpointError: if it is none, or damaged.
        """
        try:
            data = bytes(self.read(name, MANIFEST, MAX_MANIFEST))
            manifest = read_manifest(data, f"{MANIFEST} of {self.describe(name)}")
            there = set(self.files(name))
        except OSError as error:
            raise CheckpointError(f"{self.describe(name)} cannot be read: {error}") from error
        expected = {MANIFEST, *manifest.files}
        if there != expected:
            odd = sorted(there ^ expected)[0]
            raise CheckpointError(
                f"{self.describe(name)} is damaged: {odd[:100]!r} is {'not of it' if odd in there else 'missing'}"
            )
        return manifest

    def load(self, name: str, limit: int | None = None, shards: Shards = "whole") -> tuple[Manifest, Any]:
        """The state in a checkpoint, every byte of it verified first.

        Args:
            name: which one.
            limit: refuse more bytes than that.
            shards: what becomes of tensors that several ranks have written.

        Raises:
            CheckpointError: if it is damaged, too large, or of a form that is not known.
        """
        manifest = self.manifest(name)
        what = self.describe(name)
        check_sizes(manifest, limit, what)
        tensors = from_bytes(self._verified(name, TENSORS, *manifest.files[TENSORS]), f"{TENSORS} of {what}")
        if INDEX in manifest.files:
            stored = self._stored(name, manifest).all()
            if twice := sorted(stored.keys() & tensors.keys()):
                raise CheckpointError(f"{what} is damaged or not Lightloop's: it has {twice[0][:100]} twice")
            tensors |= stored
        text = self._verified(name, STATE, *manifest.files[STATE])
        if shards == "verified":
            for file in manifest.files.keys() - {TENSORS, STATE}:
                self._verified(name, file, *manifest.files[file])
        state = decode(from_json(bytes(text), f"{STATE} of {what}"), tensors)
        check_form(state, STATES.get(manifest.body.get("content"), object), f"{STATE} of {what}")
        return manifest, self._whole(state) if shards == "whole" and INDEX in manifest.files else state

    def _whole(self, state: Any) -> Any:
        from lightloop_plugins.checkpoint.sharded.load import read_all  # torch.distributed, which few runs need

        return read_all(state, None)

    def _stored(self, name: str, manifest: Manifest) -> Source:
        def read(file: str) -> Mapping[str, Tensor]:
            return from_bytes(self._verified(name, file, *manifest.files[file]), f"{file} of {self.describe(name)}")

        data = bytes(self._verified(name, INDEX, *manifest.files[INDEX]))
        return Source(read_index(data, manifest.files, f"{INDEX} of {self.describe(name)}"), read)

    def verify(self, name: str) -> Manifest:
        """Read every byte of a checkpoint and compare it with its manifest."""
        manifest = self.manifest(name)
        for file, (size, digest) in manifest.files.items():
            self._verified(name, file, size, digest)
        return manifest

    def _verified(self, name: str, file: str, size: int, digest: str) -> bytearray:
        try:
            data = self.read(name, file, size)
        except OSError as error:
            raise CheckpointError(f"{self.describe(name)} cannot be read: {error}") from error
        if len(data) != size:
            raise CheckpointError(f"{self.describe(name)} is damaged: {file} has {len(data)} bytes, not {size}")
        if hashlib.sha256(data).hexdigest() != digest:
            raise CheckpointError(f"{self.describe(name)} is damaged: {file} has changed since it was written")
        return data
