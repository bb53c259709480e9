"""How large a checkpoint may be, which is asked before any of it is read: a stranger's claims cost nothing to make."""

from __future__ import annotations

import os

from torch import nn
from torch.nn.parameter import is_lazy

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.manifest import STATE, Manifest
from lightloop_plugins.checkpoint.format.strict_json import MAX_JSON
from lightloop_plugins.checkpoint.sharded.index import INDEX

ALWAYS = 2**30
"""So many bytes are read of a checkpoint of whatever module."""
TIMES = 64
"""And so many times those of the module's tensors: optimizers, averages and the gradients of several ranks take a few each."""


def allowance(module: nn.Module) -> int:
    """How many bytes a checkpoint of ``module`` has at most."""
    tensors = [tensor for each in (module.parameters(), module.buffers()) for tensor in each if not is_lazy(tensor)]
    return ALWAYS + TIMES * sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # sparse ones as dense


def check_sizes(manifest: Manifest, limit: int | None, what: str) -> None:
    """Refuse a checkpoint that is larger than ``limit``, or that has a file which could not be held in memory.

    Raises:
        CheckpointError: it says ``what`` is too large.
    """
    if limit is not None and manifest.size > limit:
        raise CheckpointError(
            f"{what} has {manifest.size} bytes where at most {limit} are expected for this module: is it of another one?"
        )
    for file, (size, _) in manifest.files.items():
        check_size(size, f"{file} of {what}", MAX_JSON if file in (STATE, INDEX) else None)


def check_size(size: int, what: str, limit: int | None = None) -> None:
    """Refuse a file that is larger than ``limit``, or than this machine's memory.

    Raises:
        CheckpointError: it says ``what`` is too large.
    """
    if limit is not None and size > limit:
        raise CheckpointError(f"{what} has {size} bytes; {limit} are read")
    if (memory := _memory()) is not None and size > memory:
        raise CheckpointError(f"{what} has {size} bytes, and this machine has {memory} bytes of memory")


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
