"""Checkpoints in any place that fsspec knows: object stores, memory, other machines."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import MANIFEST, is_name, write_manifest
from lightloop_plugins.checkpoint.storage.folder import BAD, FOLDER, PREFIX, Content, Folder
from lightloop_plugins.checkpoint.storage.local import LocalFolder


class RemoteFolder(Folder):
    """A directory that fsspec reaches; the manifest, written last, is what commits a checkpoint, for nothing is renamed.

    There is no lock: two writers do not overwrite one another, but neither is refused.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        super().__init__(url)
        self.fs, self.root = fsspec.core.url_to_fs(url)
        self.root = self.root.rstrip("/")

    def names(self) -> list[str]:
        found = [name for name in self._listed(self.root) if name.startswith(PREFIX) and is_name(name)]
        return [name for name in found if self.fs.exists(f"{self.root}/{name}/{MANIFEST}")]

    def has(self, name: str) -> bool:
        return bool(self.fs.exists(f"{self.root}/{name}/{MANIFEST}"))

    def files(self, name: str) -> list[str]:
        return self._listed(f"{self.root}/{name}")

    def read(self, name: str, file: str, limit: int) -> bytearray:
        path = f"{self.root}/{name}/{file}"
        size = self.fs.info(path)["size"]
        if size > limit:
            raise OSError(f"{file} has {size} bytes where {limit} are expected")
        return bytearray(self.fs.cat_file(path, start=0, end=size))

    def write(self, name: str, content: Content, body: Mapping[str, Any]) -> None:
        base = f"{self.root}/{name}"
        if self.has(name):
            raise CheckpointError(f"{self.describe(name)} is there already, and is not overwritten")
        try:
            if self.fs.exists(base):  # left by a writer that died before it could commit
                self.fs.rm(base, recursive=True)
            self.fs.makedirs(base, exist_ok=True)
            files = content.write(self, name)
            self.fs.pipe_file(f"{base}/{MANIFEST}", write_manifest(body, files))
        except BaseException as error:
            with contextlib.suppress(Exception):  # without a manifest it is no checkpoint
                self.fs.rm(base, recursive=True)
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(f"{self.describe(name)} is not saved: {error}. Older ones are untouched") from error

    def put(self, place: str, file: str, parts: Iterable[memoryview]) -> tuple[int, str]:
        path, digest, size = f"{self.root}/{place}/{file}", hashlib.sha256(), 0
        with self.fs.open(path, "wb") as stream:
            for part in parts:
                digest.update(part)
                stream.write(part)
                size += part.nbytes
        if self.fs.info(path)["size"] != size:
            raise OSError(f"{file} has not the {size} bytes that were written")
        return size, digest.hexdigest()

    def remove(self, name: str) -> None:
        self.fs.rm_file(f"{self.root}/{name}/{MANIFEST}")
        self.fs.rm(f"{self.root}/{name}", recursive=True)

    def set_aside(self, name: str) -> str:
        target = f"{BAD}{name}"
        while self.fs.exists(f"{self.root}/{target}"):
            target += "-"
        self.fs.mv(f"{self.root}/{name}", f"{self.root}/{target}", recursive=True)
        return target

    def _listed(self, path: str) -> list[str]:
        try:
            return sorted(entry.rstrip("/").rpartition("/")[2] for entry in self.fs.ls(path, detail=False))
        except FileNotFoundError:
            return []


def folder_of(place: str | os.PathLike[str]) -> Folder:
    """The folder that ``place`` means: a path, or a URL such as ``s3://bucket/run`` or ``memory://run``."""
    text = os.fspath(place)
    if text.startswith("file://"):
        return LocalFolder(text.removeprefix("file://"))
    return RemoteFolder(text) if "://" in text else LocalFolder(text)


def folder_in(run: str | os.PathLike[str]) -> Folder:
    """The folder of checkpoints in a run's directory, which is no link."""
    text = os.path.join(os.fspath(run), FOLDER)
    return folder_of(text) if "://" in text else LocalFolder(text.removeprefix("file://"), follow=False)


def absolute(place: str | os.PathLike[str]) -> str:
    """The same place, wherever the process is by then."""
    text = os.fspath(place)
    return text if "://" in text else os.path.abspath(text)
