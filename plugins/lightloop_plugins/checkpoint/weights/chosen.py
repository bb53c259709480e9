"""The weights that a run begins with, or that are evaluated, where the user says which."""

from __future__ import annotations

import os

from torch import nn

from lightloop.toolkit import warn
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.limits import allowance
from lightloop_plugins.checkpoint.storage.find import Found, load_best, load_newest
from lightloop_plugins.checkpoint.storage.folder import Folder
from lightloop_plugins.checkpoint.weights.filling import fill
from lightloop_plugins.checkpoint.weights.load import load_weights, read_weights, weights_of


def begin_with(module: nn.Module, place: str, found: Found | None, strict: bool, tell: bool = True) -> bool:
    """Where what a run was told to go on from has weights alone, put them into ``module``; whether it was so.

    ``"auto"`` takes none: whoever goes on with a run means all of it.
    """
    if place == "auto" or (found is not None and found.manifest.body.get("content") == "run"):
        return False
    if found is None and not place.endswith(".safetensors"):
        return False
    anew = f"{place} has weights alone: training begins at step 0 with them"
    if strict:
        raise CheckpointError(f"{anew}, and resume_strict is set")
    fill(module, read_weights(place, allowance(module))[0], place)
    if tell:
        warn(f"{anew}; optimizers, schedules, plugins, random numbers and the place in the data begin anew")
    return True


def load_for_evaluation(module: nn.Module, place: str | os.PathLike[str], places: list[Folder]) -> str:
    """Put the weights of a checkpoint into ``module``; which one it was.

    Args:
        module: what is about to be evaluated.
        place: a path, as in :func:`load_weights`; "auto" is the newest and "best" the best one in ``places``.
        places: folders, the first of which that has a checkpoint is taken.
    """
    text = os.fspath(place)
    if text not in ("auto", "best"):
        load_weights(module, place)
        return text
    folder = next((folder for folder in places if folder.names()), None)
    if folder is None:
        raise CheckpointError(
            f"resume={text!r}: no run of this experiment has saved a checkpoint: fit with monitor= first, or give a path"
        )
    found = (
        load_best(folder, allowance(module)) if text == "best" else load_newest(folder, allowance(module), aside=False)
    )
    assert found is not None  # there are some
    fill(module, weights_of(found.state), folder.describe(found.name))
    return folder.describe(found.name)
