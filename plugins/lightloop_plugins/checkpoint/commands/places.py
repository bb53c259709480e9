"""What the command line means by a place: a checkpoint, a folder of them, a run, or a folder of runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import Manifest, is_name
from lightloop_plugins.checkpoint.storage.find import newest_first
from lightloop_plugins.checkpoint.storage.folder import BAD, DEAD, EXCEPTION, FOLDER, PREFIX, TEMPORARY, Folder
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from lightloop_plugins.checkpoint.storage.remote import RemoteFolder, folder_in, folder_of

ASIDE = {BAD: "kept aside as damaged", DEAD: "being deleted", TEMPORARY: "not finished"}
"""What else is in a folder of checkpoints, by how its name begins."""


@dataclass(frozen=True)
class Place:
    """One checkpoint, whatever state it is in."""

    folder: Folder
    name: str

    @property
    def path(self) -> str:
        """How it is named to people."""
        return f"{self.folder.place.rstrip('/')}/{self.name}"

    @property
    def aside(self) -> str | None:
        """Why it is no checkpoint to go on from, by its name."""
        return next((why for prefix, why in ASIDE.items() if self.name.startswith(prefix)), None)

    def manifest(self) -> Manifest:
        """What it says of itself."""
        return self.folder.manifest(self.name)


def folders(place: str) -> list[Folder]:
    """Every folder of checkpoints at ``place``: itself, that of a run, or those of the runs in it.

    Raises:
        CheckpointError: if there is none.
    """
    text = place.rstrip("/") or place
    for folder in (folder_of(text), folder_in(text)):
        if names(folder):
            return [folder]
    found = [] if "://" in text else sorted(p for depth in ("*", "*/*") for p in Path(text).glob(f"{depth}/{FOLDER}"))
    if many := [folder for folder in (folder_in(path.parent) for path in found) if names(folder)]:
        return many
    there = "there is no folder" if "://" not in text and not os.path.isdir(text) else "there is no checkpoint in"
    raise CheckpointError(f"{there} {text}: give a checkpoint, a folder of them, a run, or a folder of runs")


def names(folder: Folder) -> list[str]:
    """The checkpoints of ``folder``, those that errors made and that are kept aside too."""
    try:
        found = folder._listed(folder.root) if isinstance(folder, RemoteFolder) else _entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"the checkpoints in {folder.place} cannot be read: {error}") from error
    return sorted(name for name in found if is_name(name.lstrip(".")) and name.startswith((PREFIX, EXCEPTION, *ASIDE)))


def _entries(folder: Folder) -> list[str]:
    assert isinstance(folder, LocalFolder)
    return folder.entries()


def checkpoints(place: str) -> list[Place]:
    """Every checkpoint at ``place``, or that one."""
    one = _one(place)
    return [one] if one else [Place(folder, name) for folder in folders(place) for name in names(folder)]


def checkpoint(place: str) -> Place:
    """The checkpoint at ``place``; of a folder, the newest whose manifest can be read.

    Raises:
        CheckpointError: if there is none, or several runs.
    """
    if one := _one(place):
        return one
    found = folders(place)
    if len(found) > 1:
        raise CheckpointError(
            f"{place} has {len(found)} runs with checkpoints, such as {found[-1].place}: give one of them"
        )
    manifests: dict[str, Manifest] = {}
    reasons = []
    for name in found[0].names():
        try:
            manifests[name] = found[0].manifest(name)
        except CheckpointError as error:
            reasons.append(str(error))
    if not manifests:
        raise CheckpointError(f"no checkpoint in {found[0].place} can be read: {'; '.join(reasons) or 'there is none'}")
    ranked = newest_first(manifests, found[0]) or sorted(
        manifests, key=lambda name: manifests[name].place, reverse=True
    )
    return Place(found[0], ranked[0])


def _one(place: str) -> Place | None:
    parent, _, name = place.rstrip("/").rpartition("/")
    if not name.startswith((PREFIX, EXCEPTION, *ASIDE)):
        return None
    folder = folder_of(parent or ("/" if place.startswith("/") else "."))
    if isinstance(folder, LocalFolder) and not (folder.path / name).is_dir():
        raise CheckpointError(f"there is no checkpoint {place}")
    return Place(folder, name)
