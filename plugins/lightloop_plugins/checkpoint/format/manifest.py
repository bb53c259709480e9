"""The record that makes a directory a checkpoint: what it is of, and the size and hash of every file in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.schema import BODY, check_form
from lightloop_plugins.checkpoint.format.strict_json import from_json, to_json

FORMAT = 1
"""The number of the form in which checkpoints are written; a reader refuses what is higher than it knows."""
MANIFEST = "MANIFEST.json"
STATE = "state.json"
TENSORS = "tensors.safetensors"
MAX_MANIFEST = 4 * 2**20

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """What MANIFEST.json says."""

    run: str
    """The run's identity; it is kept when the run is resumed."""
    step: int
    """Optimizer steps that were applied."""
    batch: int
    """Training batches that were done; two checkpoints of one run never agree in both numbers."""
    body: Mapping[str, Any]
    """All of it: ``parent``, ``versions``, ``plugins``, ``options``, ``counters``, ``environment``, ``metrics`` …"""
    files: Mapping[str, tuple[int, str]]
    """Size in bytes and SHA-256 of every other file."""

    @property
    def place(self) -> tuple[int, int]:
        """What the newest checkpoint has most of."""
        return self.step, self.batch

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(size for size, _ in self.files.values())


def is_name(name: object) -> bool:
    """Whether ``name`` may be that of a file or a checkpoint: no separator, no leading dot, nothing odd."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and ".." not in name


def write_manifest(body: Mapping[str, Any], files: Mapping[str, tuple[int, str]]) -> bytes:
    """The bytes of MANIFEST.json for ``body`` and ``files``."""
    full = {"format": FORMAT, **body, "files": {name: {"size": size, "sha256": h} for name, (size, h) in files.items()}}
    text = to_json(full)
    return b'{"body":%b,"sha256":"%b"}' % (text, hashlib.sha256(text).hexdigest().encode())


def read_manifest(data: bytes, what: str) -> Manifest:
    """Read MANIFEST.json and check all that can be checked without the other files.

    Raises:
        CheckpointError: if it is damaged, or of a form that this version does not know; ``what`` names it.
    """
    if len(data) > MAX_MANIFEST:
        raise CheckpointError(f"{what} is damaged or not Lightloop's: {len(data)} bytes; {MAX_MANIFEST} are read")
    document = from_json(data, what)
    try:
        body, digest = document["body"], document["sha256"]
        if set(document) != {"body", "sha256"} or digest != hashlib.sha256(to_json(body)).hexdigest():
            raise ValueError("its hash is not that of its content")
        if to_json(document) != data:
            raise ValueError("it was written by something else")
        if type(body["format"]) is not int or body["format"] != FORMAT:
            raise CheckpointError(
                f"{what} is of format {str(body['format'])[:20]!r}; this version of Lightloop reads format {FORMAT}: "
                "use the version that wrote it"
            )
        files = {name: (entry["size"], entry["sha256"]) for name, entry in body["files"].items()}
        _check(body, files)
        check_form(body, BODY, what)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{what} is damaged or not Lightloop's: {type(error).__name__}: {str(error)[:200]}"
        ) from None
    return Manifest(body["run"], body["step"], body["batch"], body, files)


def _check(body: Mapping[str, Any], files: Mapping[str, tuple[int, str]]) -> None:
    if not is_name(body["run"]):
        raise ValueError("its run has no possible name")
    for name, (size, digest) in files.items():
        if not is_name(name) or name == MANIFEST:
            raise ValueError(f"{str(name)[:100]!r} cannot be the name of a file")
        if type(size) is not int or size < 0 or not _HASH.fullmatch(digest):
            raise ValueError(f"{name!r} has no possible size or hash")
    if not {STATE, TENSORS} <= set(files):
        raise ValueError(f"{STATE} or {TENSORS} is missing")
