"""Find the checkpoint to resume from."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from lightloop.toolkit import warn
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import Manifest
from lightloop_plugins.checkpoint.storage.folder import Folder, Shards
from lightloop_plugins.checkpoint.storage.retention import score_of


@dataclass(frozen=True)
class Found:
    """A checkpoint that was read and verified."""

    folder: Folder
    name: str
    manifest: Manifest
    state: Any


def load_newest(folder: Folder, limit: int | None = None, aside: bool = True, shards: Shards = "whole") -> Found | None:
    """The newest checkpoint of ``folder`` whose every byte verifies; None where there is none at all.

    Newest is which has most steps, then most batches, among those of the run that wrote there last. A damaged one is named
    in a warning, kept under a name that begins with ``.bad-`` (unless ``aside`` is False), and passed over.

    Raises:
        CheckpointError: if there are some and none verifies; it lists why. Nothing is renamed then.
    """
    manifests, bad = {}, {}
    for name in folder.names():
        try:
            manifests[name] = folder.manifest(name)
        except CheckpointError as error:
            bad[name] = error
    for name in newest_first(manifests, folder):
        try:
            manifest, state = folder.load(name, limit, shards)
        except CheckpointError as error:
            bad[name] = error
            continue
        _pass_over(folder, bad, aside)
        return Found(folder, name, manifest, state)
    if manifests or bad:
        raise _none(folder, min(manifests, default=None), bad)
    return None


def _none(folder: Folder, other: str | None, bad: dict[str, CheckpointError]) -> CheckpointError:
    """Why none can be taken of those that are there: ``other`` is one of another run."""
    if not bad:
        return CheckpointError(
            f"{folder.place} has no checkpoint of the run that wrote there last, only of other runs, such as "
            f"{other}: name the one to go on from with resume=, or give another checkpoint_dir"
        )
    reasons = "\n".join(f"  {name}: {error}" for name, error in bad.items())
    return CheckpointError(
        f"none of the {len(bad)} checkpoints in {folder.place} can be gone on from:\n{reasons}\n"
        "Nothing is trained from scratch in their place: name another one with resume=, or move these away"
    )


def load_one(folder: Folder, name: str, limit: int | None = None, shards: Shards = "whole") -> Found:
    """The checkpoint ``name`` of ``folder`` and no other.

    Raises:
        CheckpointError: if it is absent or damaged.
    """
    return Found(folder, name, *folder.load(name, limit, shards))


def load_best(folder: Folder, limit: int | None = None) -> Found:
    """The checkpoint with the best score, among those of the run that wrote in ``folder`` last.

    Raises:
        CheckpointError: if there is none with a score, or it is damaged.
    """
    manifests = {}
    for name in folder.names():
        with contextlib.suppress(CheckpointError):
            manifests[name] = folder.manifest(name)
    oldest_first = reversed(newest_first(manifests, folder))  # of equal scores, the older one is the better
    scored = [(score, name) for name in oldest_first if (score := _score(manifests[name])) is not None]
    if not scored:
        raise CheckpointError(
            f"none of the {len(manifests)} checkpoints in {folder.place} has a score: Trainer(monitor='val_loss') ranks them "
            "by that metric; without it, give the path of a checkpoint"
        )
    return load_one(folder, max(scored, key=lambda each: each[0])[1], limit)


def monitored(manifest: Manifest) -> tuple[str, str] | None:
    """The metric by which the run ranks its checkpoints, and whether it is better at its "min" or "max"."""
    if "ranked_by" in manifest.body:
        by = manifest.body["ranked_by"]
        return None if by is None else (by["metric"], by["mode"])
    options = manifest.body.get("options", {}).get("checkpoint", {})
    # An older one has but the text of the options.
    monitor, mode = str(options.get("monitor")), str(options.get("mode"))
    return (monitor[1:-1], mode.strip("'")) if monitor[:1] in ("'", '"') else None


def _score(manifest: Manifest) -> float | None:
    by = monitored(manifest)
    return None if by is None else score_of(manifest, *by)


def newest_first(manifests: dict[str, Manifest], folder: Folder) -> list[str]:
    """The checkpoints of the run that wrote last; where nobody knows which that was, of the one that came furthest."""
    ranked = sorted(manifests, key=lambda name: (manifests[name].place, name), reverse=True)
    run = folder.last_run() or (manifests[ranked[0]].run if ranked else None)
    return [name for name in ranked if manifests[name].run == run]


def _pass_over(folder: Folder, bad: dict[str, CheckpointError], aside: bool) -> None:
    for name, error in bad.items():
        try:
            kept = f", it is kept as {folder.set_aside(name)}" if aside else ""
        except Exception as failure:
            kept = f", it cannot be renamed: {failure}"
        warn(f"{error}; passed over{kept}")


def is_of_run(folder: Folder, name: str, run: str) -> bool:
    """Whether a checkpoint can be read, and is of ``run``."""
    try:
        return folder.manifest(name).run == run
    except CheckpointError:
        return False
