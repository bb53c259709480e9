"""What all ranks do together to save or to load, and whose error it is if one of them fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from lightloop_plugins.checkpoint.errors import CheckpointError

T = TypeVar("T")


def together(work: Callable[[], T]) -> T:
    """What ``work`` returns, with the error of whichever rank it was."""
    try:
        return work()
    except CheckpointException as failed:
        rank, (error, _) = next(iter(sorted(failed.failures.items())))
        where = f"on rank {rank}: "
        if isinstance(error, OSError):
            raise OSError(error.errno, where + (error.strerror or str(error))) from error
        said = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(where + said) from error
