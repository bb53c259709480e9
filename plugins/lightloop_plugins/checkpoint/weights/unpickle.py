"""Read files of others: as tensors and plain values alone, or, where that is asked for, by running what is in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from packaging.version import Version
from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.safetensors import from_bytes
from lightloop_plugins.checkpoint.format.tree import decode
from lightloop_plugins.checkpoint.weights.foreign import Foreign

SAFE = Version("2.10")
"""Before this version of torch, files of tensors alone could overwrite memory while they were read (CVE-2026-24747)."""

_TRUSTING = """
import json, sys, torch
from pathlib import Path
from lightloop_plugins.checkpoint.weights.foreign import Foreign
from lightloop_plugins.checkpoint.weights.files import write_safetensors
found = Foreign.of(torch.load(sys.argv[1], map_location="cpu", weights_only=False), sys.argv[1])
write_safetensors(found.weights, sys.argv[2])
Path(sys.argv[3]).write_text(json.dumps(found.about()))
"""


def read_foreign(source: str | os.PathLike[str], trust: bool = False) -> Foreign:
    """What is in a ``.ckpt``, ``.pt``, ``.bin`` or ``.safetensors`` file of somebody else's.

    Args:
        source: the file.
        trust: run whatever code the file brings, in a process of its own with all that you may do. Without it nothing but
            tensors and plain values is read, which is enough for nearly all files.

    Raises:
        CheckpointError: if it cannot be read so, or has no weights.
    """
    path = Path(source)
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        return Foreign(from_bytes(bytearray(path.read_bytes()), str(path)), "a file of safetensors")
    if trust:
        return _trusting(path)
    if Version(torch.__version__) < SAFE:
        raise CheckpointError(
            f"torch {torch.__version__} can be made to overwrite memory by files of tensors alone (CVE-2026-24747): import "
            f"{path} with torch {SAFE} or later, or with --trust if you trust whoever made it"
        )
    _check_archive(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(_refused(path, error)) from error
    return Foreign.of(found, str(path))


def import_weights(source: str | os.PathLike[str], trust: bool = False) -> dict[str, Tensor]:
    """The weights alone of what :func:`read_foreign` reads."""
    return read_foreign(source, trust).weights


def _trusting(path: Path) -> Foreign:
    """What a process of its own makes of the file, by running whatever is in it."""
    with tempfile.TemporaryDirectory() as folder:
        weights, about = Path(folder) / "weights.safetensors", Path(folder) / "about.json"
        program = [sys.executable, "-c", _TRUSTING, str(path.absolute()), str(weights), str(about)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(program, capture_output=True, text=True, check=False, env=environ)
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise CheckpointError(f"{path} cannot be read: {said[0]}")
        tensors = {n: t.clone() for n, t in from_bytes(bytearray(weights.read_bytes()), str(path)).items()}
        said = json.loads(about.read_text())
        return Foreign(tensors, said["kind"], decode(said["hparams"], {}), said["step"], said["epoch"], said["left"])


def _refused(path: Path, error: Exception) -> str:
    """Why torch did not read a file as tensors and plain values."""
    if (named := re.search(r"GLOBAL (\S+)", str(error))) is not None:
        return (
            f"{path} has more than tensors and plain values in it: it names {named[1][:100]}. If you trust whoever made it "
            "with your account and your files, import it with trust=True: lightloop checkpoint import --trust"
        )
    said = re.search(r"WeightsUnpickler error:\s*(.+)", str(error)) or re.match(r"(.+?)(?:\. |$)", str(error))
    return f"{path} is damaged, or no file that torch.save writes: {said[1] if said else type(error).__name__}"


def _check_archive(path: Path) -> None:
    """Refuse a file that is packed: torch writes none, and a few bytes of one can become very many."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise CheckpointError(f"{path} is packed, as torch.save packs none: {entry.filename} is compressed")
