"""The hooks that the checkpoint plugin adds: before and after a save, and which tensors to save."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lightloop import Loop, hookspec


class CheckpointHooks:
    """Hooks around a save; mark them with ``@hookimpl(optionalhook=True)``, to work in runs without checkpoints too."""

    @hookspec
    def before_save(self, loop: Loop) -> None:
        """A checkpoint is about to be taken; the run is between two batches.

        When: before each save, on every rank.
        May change: what has to be brought together or merged to be saved, such as the state of a sharded optimizer, if
            after_save puts it back.
        """

    @hookspec(firstresult=True)
    def saved_tensors(self, loop: Loop, names: Sequence[str]) -> Collection[str] | None:
        """Return those of ``names``, the parameters and buffers of the module, that checkpoints have; None is all.

        When: before the first batch and at each save, on every rank, which must all answer alike.
        Default: all of them.
        Order: the first answer counts. What is left out must not be trained, and stays as the module builds it: a
            checkpoint has its fingerprint, and resuming over other values is an error.
        """

    @hookspec
    def after_save(self, loop: Loop) -> None:
        """The state has been written, or copied for a thread that writes it.

        When: after each save, on every rank; also after one that failed.
        May change: what before_save changed, back.
        """
