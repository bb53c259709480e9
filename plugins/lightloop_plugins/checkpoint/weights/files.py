"""Weights as one file: written whole or not at all, and read with every claim checked."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.header import read_header
from lightloop_plugins.checkpoint.format.limits import check_size
from lightloop_plugins.checkpoint.format.safetensors import from_bytes, to_bytes
from lightloop_plugins.checkpoint.format.strict_json import from_json, to_json
from lightloop_plugins.checkpoint.format.tree import decode, encode

OWN = "lightloop"
"""The entry in the metadata of a ``.safetensors`` file that has the hyperparameters."""


def write_safetensors(
    weights: Mapping[str, Tensor], target: str | os.PathLike[str], hparams: Mapping[str, Any] | None = None
) -> None:
    """Write a ``.safetensors`` file that other programs read; it is there when it is complete."""
    metadata = {"format": "pt"}
    if kept := {name: value for name, value in (hparams or {}).items() if is_plain(value)}:
        metadata[OWN] = to_json(encode(kept, {})).decode()
    with written(target) as stream:
        for part in to_bytes(weights, metadata):
            stream.write(part)


def read_safetensors(
    source: str | os.PathLike[str], limit: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights in a ``.safetensors`` file, and the hyperparameters that :func:`write_safetensors` put there.

    Raises:
        CheckpointError: if it is damaged, or has more than ``limit`` bytes.
    """
    what = os.fspath(source)
    try:
        with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError("it is not a regular file")
            check_size(found.st_size, what, limit)
            data = bytearray(found.st_size)
            if stream.readinto(data) < len(data):
                raise OSError("it became shorter while it was read")
    except OSError as error:
        raise CheckpointError(f"{what} cannot be read: {error.strerror or error}") from error
    weights = from_bytes(data, what)
    own = read_header(io.BytesIO(data), what).metadata.get(OWN)
    return weights, {} if own is None else decode(from_json(own.encode(), what), {})


@contextmanager
def written(target: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file, which takes its name when all of it is written."""
    part = Path(f"{os.fspath(target)}.part-{os.getpid()}")
    try:
        with open(part, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def is_plain(value: Any) -> bool:
    """Whether a hyperparameter can be kept without a file of tensors."""
    tensors: dict[str, Tensor] = {}
    try:
        encode(value, tensors)
    except CheckpointError:
        return False
    return not tensors
