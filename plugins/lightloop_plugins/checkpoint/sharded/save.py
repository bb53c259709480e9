"""Save a run of which each rank has a part: torch.distributed.checkpoint plans who writes what, our storage writes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.futures import Future

from lightloop_plugins._sharding import Sharding
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.safetensors import to_bytes
from lightloop_plugins.checkpoint.saver import Saver
from lightloop_plugins.checkpoint.sharded.index import INDEX, Entry, Part, shard_file, write_index
from lightloop_plugins.checkpoint.sharded.together import together
from lightloop_plugins.checkpoint.storage.folder import Content, Folder

OWN = "ranks."
"""How the names of tensors begin that a rank has for itself."""


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
        together(lambda: save(self.own, storage_writer=writer, planner=planner, process_group=self.sharding.group))
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


def _described(tensor: DTensor) -> tuple[int | None, ...]:
    for each in tensor.placements:
        if not isinstance(each, (Shard, Replicate)):
            raise CheckpointError(f"a tensor that is placed as {each} cannot be stored: redistribute it first")
    return tuple(each.dim if isinstance(each, Shard) else None for each in tensor.placements)


def _of(metadata: Metadata, name: str) -> TensorStorageMetadata:
    found = metadata.state_dict_metadata[name]
    assert isinstance(found, TensorStorageMetadata)
    return found
