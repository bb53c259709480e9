"""The one error of this folder."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written, read or applied; the message says which, where, what was found and what to do."""
