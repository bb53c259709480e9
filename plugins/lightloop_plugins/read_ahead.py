"""Read one batch ahead if data has no length, so that the last batch is recognized."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import Around, size_of


class ReadAhead(Plugin):
    """Read one batch ahead for loaders without ``len()``; for others the last batch is known anyway.

    Without it, ``loop.is_last_batch`` is False for every batch of such a loader, and a window that is open when the data
    ends is closed behind its last batch. The numbers of one optimizer are the same; of several with a forward each, such
    windows are all closed when the data has ended. Leave it out where data is made with the module that is trained: the
    batch read ahead is made before the step on the one before it.
    """

    name = "read_ahead"

    on: bool = option(
        False,
        "Read one batch ahead of loaders without len(), so that the last batch of an epoch is known before it is trained on.",
        flag="read_ahead",
        switch=True,
    )

    @hookimpl(wrapper=True)
    def prepare_loader(self, loop: Loop) -> Generator[None, Any, Any]:
        loader = yield
        return Ahead(loader) if size_of(loader) is None else loader


class Ahead(Around):
    """``loader``, marked as one of which a batch is read ahead."""

    reads_ahead = True
    passes_on = True
    """That batches are what the loader gives, for those who resume it."""
