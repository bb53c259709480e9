"""Checkpoints of which each rank writes its part: torch.distributed.checkpoint plans and reshards, our storage stores."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.futures import Future

from lightloop_plugins._sharding import Sharding
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.saver import Saver
from lightloop_plugins.checkpoint.shards import INDEX, Entry, Part, Source, Stored, shard_file, write_index
from lightloop_plugins.checkpoint.storage import Content, Folder
from lightloop_plugins.checkpoint.tensors import to_bytes
from lightloop_plugins.checkpoint.tree import mapped

T = TypeVar("T")
OWN = "ranks."
"""How the names of tensors begin that a rank has for itself."""


# ------------------------------------------------------------------------------------------------------------ saving


@dataclass(frozen=True)
class SharedContent(Content):
    """A state of which each rank writes what is its own: its part of each split tensor, and what it has for itself.

    Rank 0 writes the rest, and commits. What the ranks tell one another for it goes through a group of its own, in this
    order: the directory that they write into, or that there is none; the plan and the results of
    torch.distributed.checkpoint; whether it was committed.
    """

    sharding: Sharding
    told: list[str | None] = field(default_factory=list)
    """What rank 0 has told the others of the save that is under way."""

    @classmethod
    def shared(cls, tree: Any, sharding: Sharding) -> SharedContent:
        """Read ``tree`` through, as :meth:`Content.of` does."""
        content = Content.of(tree, split=True)
        return cls(content.state, content.tensors, sharding)

    @property
    def own(self) -> dict[str, Tensor]:
        """The tensors of which there is a part on each rank, or on this one alone."""
        return {n: t for n, t in self.tensors.items() if isinstance(t, DTensor) or n.startswith(OWN)}

    def save(self, folder: Folder, name: str, body: Mapping[str, Any]) -> None:
        self.told.clear()
        failure: str | None = None
        try:
            folder.write(name, self, body)
        except BaseException as error:
            failure = str(error)
            raise
        finally:
            if not self.told:
                self._tell(None)
            self._tell(failure)

    def write(self, folder: Folder, place: str) -> dict[str, tuple[int, str]]:
        own = self.own
        files = Content(self.state, {n: t for n, t in self.tensors.items() if n not in own}).write(folder, place)
        self._tell(place)
        writer = self.write_own(folder, place)
        placements = {n: _described(t) for n, t in own.items() if isinstance(t, DTensor)}
        entries = {n: dataclasses.replace(e, placements=placements.get(n)) for n, e in writer.entries.items()}
        index = folder.put(place, INDEX, [memoryview(write_index(entries))])
        return {**files, **writer.files, INDEX: index}

    def follow(self, folder: Folder) -> None:
        """On every rank but 0, while rank 0 saves: write what is this rank's own.

        Raises:
            CheckpointError: if the checkpoint was not committed, whichever rank it was that failed.
        """
        failure: BaseException | None = None
        place = self._tell(None)
        if place is not None:
            try:
                self.write_own(folder, place)
            except (CheckpointError, OSError) as error:
                failure = error  # rank 0 knows, too
        said = self._tell(None)
        if said is not None:
            raise CheckpointError(said) from failure

    def write_own(self, folder: Folder, place: str) -> Writer:
        """Write what is this rank's own into ``place``, together with all ranks; rank 0's has the index."""
        writer = Writer(folder, place)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        _together(lambda: save(self.own, storage_writer=writer, planner=planner, process_group=self.sharding.group))
        return writer

    def _tell(self, text: str | None) -> str | None:
        """What rank 0 gives as ``text``."""
        self.told.append(text)
        box = [text]
        dist.broadcast_object_list(box, 0, self.sharding.group)
        return box[0]


class Writer(StorageWriter):
    """Writes what a rank's plan has into one safetensors file; on rank 0, learns what all ranks have written."""

    def __init__(self, folder: Folder, place: str) -> None:
        self.folder, self.place = folder, place
        self.files: dict[str, tuple[int, str]] = {}
        self.entries: dict[str, Entry] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=shard_file(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        file = plan.storage_data
        tensors: dict[str, Tensor] = {}
        for item in plan.items:
            value = planner.resolve_data(item)
            assert isinstance(value, Tensor)
            if item.index.fqn in tensors:
                raise CheckpointError(f"{item.index.fqn} has several parts on one rank, which cannot be stored")
            tensors[item.index.fqn] = value.detach()
        written = self.folder.put(self.place, file, to_bytes(tensors)) if tensors else (0, "")
        results = [WriteResult(i.index, tensors[i.index.fqn].nbytes, (file, *written)) for i in plan.items]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        parts: dict[str, list[Part]] = {name: [] for name in metadata.state_dict_metadata}
        for result in (each for of_rank in results for each in of_rank):
            name, index = result.index.fqn, result.index.index or 0
            file, size, digest = result.storage_data
            chunk = _of(metadata, name).chunks[index]
            parts[name].append(Part(file, tuple(chunk.offsets), tuple(chunk.sizes)))
            self.files[file] = (size, digest)
        for name in metadata.state_dict_metadata:
            whole = _of(metadata, name)
            self.entries[name] = Entry(whole.properties.dtype, tuple(whole.size), None, tuple(parts[name]))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


class Follower(Saver):
    """What a :class:`Saver` is on ranks other than 0: it writes this rank's part, and what rank 0 says becomes of it."""

    def open(self) -> None:
        self._start()

    def _write(self, entry: Any, content: Content, body: Mapping[str, Any]) -> None:
        assert isinstance(content, SharedContent)
        content.follow(self.folder)
        self.failures = 0

    def _name(self, body: Mapping[str, Any], prefix: str) -> str:
        return prefix


def _together(work: Callable[[], T]) -> T:
    """What ``work`` returns, with the error of whichever rank it was."""
    try:
        return work()
    except CheckpointException as failed:
        rank, (error, _) = next(iter(sorted(failed.failures.items())))
        where = f"on rank {rank}: "
        if isinstance(error, OSError):
            raise OSError(error.errno, where + (error.strerror or str(error))) from error
        said = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(where + said) from error


def _described(tensor: DTensor) -> tuple[int | None, ...]:
    for each in tensor.placements:
        if not isinstance(each, (Shard, Replicate)):
            raise CheckpointError(f"a tensor that is placed as {each} cannot be stored: redistribute it first")
    return tuple(each.dim if isinstance(each, Shard) else None for each in tensor.placements)


def _of(metadata: Metadata, name: str) -> TensorStorageMetadata:
    found = metadata.state_dict_metadata[name]
    assert isinstance(found, TensorStorageMetadata)
    return found


# ----------------------------------------------------------------------------------------------------------- loading


def read_all(tree: T, sharding: Sharding | None) -> T:
    """``tree`` with the values of all tensors in it that are stored.

    Args:
        tree: anything that is saved.
        sharding: how tensors are split now, whatever they were; each rank reads its part alone. None reads them whole.
    """
    found: dict[str, Stored] = {}
    mapped(tree, lambda value: found.setdefault(value.key, value) if isinstance(value, Stored) else value)
    if not found:
        return tree
    source = next(iter(found.values())).source
    tensors = {name: _room(source.entries[name], sharding) for name in found}
    read_into(tensors, source, None if sharding is None else sharding.group)
    whole: T = mapped(tree, lambda value: tensors[value.key] if isinstance(value, Stored) else value)
    return whole


def read_into(tensors: dict[str, Tensor], source: Source, group: Any = None) -> None:
    """Fill ``tensors``, which may be split over the ranks of ``group``, with what ``source`` has under their names."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        _together(
            lambda: load(
                tensors, storage_reader=Reader(source), planner=planner, process_group=group, no_dist=group is None
            )
        )


def placed(value: Tensor, like: Tensor) -> Tensor:
    """``value`` split as ``like`` is; every rank has the whole of it, or its part already."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


class Reader(StorageReader):
    """Reads what a rank's plan asks for, file by file."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *args: Any) -> Metadata:
        return Metadata({name: _metadata(entry) for name, entry in self.source.entries.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[str, list[tuple[Part, Any]]] = {}
        for item in plan.items:
            part = self._part(item.storage_index)
            wanted.setdefault(part.file, []).append((part, item))
        for file, items in sorted(wanted.items()):
            there = self.source.read(file)
            for part, item in items:
                block = self._block(there, item.storage_index.fqn, part)
                for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    block = block.narrow(dim, start, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(block)
                planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _part(self, index: MetadataIndex) -> Part:
        return self.source.entries[index.fqn].parts[index.index or 0]

    def _block(self, there: Mapping[str, Tensor], name: str, part: Part) -> Tensor:
        block, dtype = there.get(name), self.source.entries[name].dtype
        if block is None or tuple(block.shape) != part.sizes or block.dtype != dtype:
            raise CheckpointError(f"{part.file} has not the part of {name[:100]} that {INDEX} speaks of")
        return block

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def _metadata(entry: Entry) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes)) for part in entry.parts]
    return TensorStorageMetadata(TensorProperties(entry.dtype), torch.Size(entry.shape), chunks)


def _room(entry: Entry, sharding: Sharding | None) -> Tensor:
    if sharding is None or entry.placements is None:
        return torch.empty(entry.shape, dtype=entry.dtype)
    placements: list[Placement] = [Replicate() if dim is None else Shard(dim) for dim in entry.placements]
    if len(placements) != sharding.mesh.ndim:
        placements = [Shard(0) if entry.shape else Replicate()] * sharding.mesh.ndim
    return empty_dtensor(*entry.shape, dtype=entry.dtype, device_mesh=sharding.mesh, placements=placements)
