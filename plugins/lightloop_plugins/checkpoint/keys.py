"""Stash keys that saving, resuming and other plugins share."""

from __future__ import annotations

from dataclasses import dataclass

from lightloop import Key
from lightloop_plugins.checkpoint.saver import new_run
from lightloop_plugins.checkpoint.state.reading import Reading
from lightloop_plugins.checkpoint.storage.find import Found, is_of_run
from lightloop_plugins.checkpoint.storage.remote import absolute


@dataclass(frozen=True)
class Resumption:
    """The checkpoint from which the run resumes."""

    found: Found
    auto: bool
    """Whether that is the newest, whichever it is; otherwise the user has named it."""

    def run_in(self, place: str) -> str:
        """What a run that saves in ``place`` is called: as the one that it goes on with, unless that has a later past there."""
        found = self.found
        if not self.is_in(place):
            return new_run()
        later = [name for name in found.folder.names() if name != found.name and name > found.name]
        parted = not self.auto and any(is_of_run(found.folder, name, found.manifest.run) for name in later)
        return new_run() if parted else found.manifest.run

    def named_in(self, place: str) -> str | None:
        """The checkpoint in ``place`` that the user has named."""
        return self.found.name if self.is_in(place) and not self.auto else None

    def is_in(self, place: str) -> bool:
        """Whether the checkpoint is in ``place``."""
        return absolute(self.found.folder.place) == absolute(place)


RESUME: Key[str] = Key("checkpoint.resume")
"""From what to go on where the user has not said; whoever knows sets it in its setup, before the plugin ``resume``. It is
gone afterwards where the user has."""
DIRECTORY: Key[str] = Key("checkpoint.directory")
"""Where the user has said that checkpoints are kept."""
HELD: Key[str] = Key("checkpoint.held")
"""The folder, named by the user, in which this process alone writes checkpoints; from the setup of ``checkpoint`` on."""
RESUMED: Key[Resumption] = Key("checkpoint.resumed")
"""There in a fit that goes on from a checkpoint, from the first before_epoch on."""
READING: Key[Reading] = Key("checkpoint.reading")
"""How the epoch is read, where checkpoints are saved; there in read_batches alone."""
