"""Load a checkpoint that several ranks have written: torch.distributed.checkpoint plans who reads what, our storage reads it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.futures import Future

from lightloop_plugins._sharding import Sharding
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.tree import mapped
from lightloop_plugins.checkpoint.sharded.index import INDEX, Entry, Part, Source, Stored
from lightloop_plugins.checkpoint.sharded.together import together

T = TypeVar("T")


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
        together(
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
