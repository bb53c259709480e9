"""Which checkpoints to keep."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from lightloop.toolkit import warn
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import Manifest
from lightloop_plugins.checkpoint.storage.folder import Folder


@dataclass(frozen=True)
class Saved:
    """A checkpoint of this run."""

    name: str
    place: tuple[int, int]
    score: float | None
    """The value that it is ranked by, higher is better; None where there was none, or it was no number."""


def score_of(manifest: Manifest, monitor: str | None, mode: str) -> float | None:
    """The metric ``monitor`` as a score."""
    value = manifest.body.get("metrics", {}).get(monitor) if monitor else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if mode == "max" else -float(value)


def find_saved(folder: Folder, run: str, monitor: str | None, mode: str, content: str = "run") -> list[Saved]:
    """The checkpoints in ``folder`` that are of ``run`` and ``content``; others are foreign, and not looked at again."""
    found = []
    for name in folder.names():
        try:
            manifest = folder.manifest(name)
        except CheckpointError:
            continue
        if manifest.run == run and manifest.body.get("content") == content:
            found.append(Saved(name, manifest.place, score_of(manifest, monitor, mode)))
    return sorted(found, key=lambda saved: saved.place)


def to_remove(saved: Collection[Saved], last: int, top: int, protected: Collection[str]) -> list[Saved]:
    """Those that are neither among the ``last`` newest, nor the ``top`` best (-1: all are), nor ``protected``.

    The newest is always kept. Of equal scores the older one is the better; without a score, a checkpoint is no best one.
    """
    if top < 0:
        return []
    newest = sorted(saved, key=lambda each: each.place, reverse=True)[: max(last, 1)]
    scored = [each for each in saved if each.score is not None]
    best = sorted(scored, key=lambda each: (-(each.score or 0.0), each.place))[:top]
    kept = {each.name for each in (*newest, *best)} | set(protected)
    return [each for each in saved if each.name not in kept]


def remove(folder: Folder, saved: Saved) -> None:
    """Delete a checkpoint; what cannot be deleted is a warning, for nothing is lost by it."""
    try:
        folder.remove(saved.name)
    except FileNotFoundError:
        warn(f"{folder.describe(saved.name)} was to be deleted and is gone already")
    except OSError as error:
        warn(f"{folder.describe(saved.name)} cannot be deleted: {error}")
