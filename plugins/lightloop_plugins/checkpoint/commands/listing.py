"""``lightloop checkpoint list`` and ``verify``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from lightloop.cli.front import Parser
from lightloop_plugins.checkpoint.commands.places import Place, checkpoints
from lightloop_plugins.checkpoint.commands.reading import faults
from lightloop_plugins.checkpoint.commands.text import as_json, printable, size, table
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import MANIFEST, Manifest
from lightloop_plugins.checkpoint.storage.find import monitored
from lightloop_plugins.checkpoint.storage.local import LocalFolder

COLUMNS = ("CHECKPOINT", "STEP", "EPOCH", "SAVED", "METRIC", "SIZE", "RUN", "CONDITION")


def list_(arguments: list[str]) -> int:
    """List the checkpoints of a folder, a run or several runs, and which of them are damaged; 1 if one is."""
    parser = Parser("checkpoint list", list_)
    parser.add_argument("place", nargs="?", metavar="PLACE", help="a folder of checkpoints, a run, or a folder of runs")
    parser.add_argument("--metric", metavar="NAME", help="show this metric, instead of the one that ranks them")
    parser.add_argument("--quick", action="store_true", help="read the manifests alone, and verify no other file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    said = parser.parse_args(arguments)
    found = checkpoints(said.place or os.environ.get("LIGHTLOOP_RUNS") or "runs")
    rows = [_row(each, said.metric, said.quick) for each in found]
    if said.json:
        print(as_json(rows))
    else:
        parts = groupby(rows, key=lambda row: str(row["folder"]))
        print("\n\n".join(f"{printable(folder)}\n{table(COLUMNS, map(_cells, part))}" for folder, part in parts))
    return 1 if any(row["problems"] for row in rows) else 0


def verify(arguments: list[str]) -> int:
    """Read every byte of checkpoints and compare it with their manifests; 1 if a file is damaged, missing or too many."""
    parser = Parser("checkpoint verify", verify)
    parser.add_argument(
        "places", nargs="+", metavar="PLACE", help="checkpoints, folders of them, runs, folders of runs"
    )
    said = parser.parse_args(arguments)
    damaged = 0
    for name in said.places:
        found = checkpoints(name)
        for place in found if len(found) == 1 else [each for each in found if not each.aside]:
            wrong = problems(place)
            damaged += bool(wrong)
            print(printable(f"{place.path}: {'; '.join(wrong) or 'verified'}"))
    return 1 if damaged else 0


def problems(place: Place) -> list[str]:
    """What is wrong with a checkpoint, each with the name of the file; nothing if every byte of it verifies."""
    try:
        manifest = place.manifest()
    except CheckpointError as error:
        return [str(error).removeprefix(f"{place.folder.describe(place.name)} ")]
    return [f"{file} {wrong}" for file, wrong in faults(place, manifest).items()]


def _row(place: Place, metric: str | None, quick: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"folder": place.folder.place, "name": place.name, "aside": place.aside, "problems": []}
    try:
        manifest = place.manifest()
    except CheckpointError as error:
        wrong = str(error).removeprefix(f"{place.folder.describe(place.name)} ")
        return {**row, "problems": [] if place.aside else [wrong], "condition": place.aside or wrong}
    wrong = "" if quick else "; ".join(f"{file} {wrong}" for file, wrong in faults(place, manifest).items())
    body, by = manifest.body, monitored(manifest)
    shown = metric or (by and by[0])
    notes = [place.aside, wrong or ("not verified" if quick else "verified")]
    notes += ["weights alone" if body.get("content") != "run" else None]
    notes += [None if body.get("exact", True) else "saved when an error ended the run"]
    return {
        **row,
        "run": manifest.run,
        "step": manifest.step,
        "batch": manifest.batch,
        "epoch": body.get("counters", {}).get("epoch"),
        "saved_at": saved_at(place, manifest),
        "metric": shown,
        "value": body.get("metrics", {}).get(shown),
        "metrics": dict(body.get("metrics", {})),
        "size": manifest.size,
        "problems": [wrong] if wrong and not place.aside else [],
        "condition": ", ".join(note for note in notes if note),
    }


def _cells(row: Mapping[str, Any]) -> list[object]:
    value = row.get("value")
    metric = "" if value is None else f"{row['metric']}={value:.6g}"
    saved = str(row.get("saved_at") or "").replace("T", " ").partition("+")[0]
    bytes_ = "" if row.get("size") is None else size(row["size"])
    shown = [row.get(name) for name in ("step", "epoch")]
    return [row["name"], *("" if each is None else each for each in shown), saved, metric, bytes_,
            row.get("run") or "", row["condition"]]  # fmt: skip


def saved_at(place: Place, manifest: Manifest) -> str | None:
    """When a checkpoint was saved, in UTC: by its manifest, or by the file system where that says nothing."""
    if "saved_at" in manifest.body:
        return str(manifest.body["saved_at"])[:40]
    if not isinstance(place.folder, LocalFolder):
        return None
    seconds = os.stat(place.folder.path / place.name / MANIFEST).st_mtime
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
