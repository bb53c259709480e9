"""What a checkpoint says of the run that it is of, and how that differs from the run that goes on from it."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch

from lightloop import Loop, Plugin
from lightloop.toolkit import fetch, warn
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.state.inputs import (
    changed_inputs,
    changed_options,
    changes,
    describe_inputs,
    has_state,
    options_of,
    shown,
)

SAVES = "checkpoint"
"""The plugin that writes checkpoints: a run goes on the same without it."""


def describe_plugins(loop: Loop) -> dict[str, Any]:
    """The plugins in their order with their versions, and what their options are, all through a run."""
    return {
        "plugins": [[plugin.key, type(plugin).origin(), type(plugin).state_version] for plugin in loop.plugins],
        "options": {plugin.key: _options(plugin) for plugin in loop.plugins},
    }


def describe_run(loop: Loop) -> dict[str, Any]:
    """Where the run is, its metrics, and all around it on which the bits of a result depend."""
    latest, wholes = loop.metrics.latest, loop.metrics.wholes
    numbers = fetch({name: value for name, value in latest.items() if name not in wholes})
    numbers |= {name: numbers[whole] for name, whole in wholes.items() if whole in numbers}  # as a monitor sees it
    return {
        "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "counters": {"epoch": loop.epoch, "batch_idx": loop.batch_idx, "global_step": loop.global_step},
        "metrics": {name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "environment": environment(loop),
    }


def environment(loop: Loop) -> dict[str, str]:
    """What must be the same for a resumed run to be the same to the bit."""
    return {
        "lightloop": _version("lightloop"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(loop.device.type),
        "processes": str(loop.world.size),
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": str(torch.backends.cudnn.benchmark),
        "default_dtype": str(torch.get_default_dtype()),
    }


def differences(loop: Loop, body: Mapping[str, Any], inputs: Mapping[str, str]) -> list[str]:
    """In what the run that made the checkpoint differs from this one, which is given ``inputs``; one line each."""
    lines = []
    there = {str(key): version for key, _, version in body.get("plugins", ())}
    here = {plugin.key: type(plugin).state_version for plugin in loop.plugins}
    if gone := [key for key in there if key not in here and key != SAVES]:
        lines.append(f"plugins that are not live now: {', '.join(gone)}")
    if new := [plugin.key for plugin in loop.plugins if plugin.key not in there and _matters(plugin)]:
        lines.append(f"plugins that were not live then, and begin anew: {', '.join(new)}")
    if there.keys() == here.keys() and list(there) != list(here):  # with others among them, the rest may change places
        lines.append(f"the order of plugins: then {', '.join(there)}; now {', '.join(here)}")
    options = body.get("options", {})
    lines += [line for plugin in loop.plugins for line in changed_options(plugin, options.get(plugin.key, {}))]
    if "inputs" in body:
        lines += changed_inputs(body["inputs"], inputs)
    return lines + changes(body.get("environment", {}), environment(loop))


def _matters(plugin: Plugin) -> bool:
    """Whether a run with ``plugin`` is another one than a run without it."""
    return has_state(plugin) or not {"gradients", "parameters"}.isdisjoint(plugin.disturbs)


def check_same_run(loop: Loop, what: str, body: Mapping[str, Any], strict: bool) -> None:
    """Tell in what the run that made the checkpoint ``what`` differs from this one.

    Raises:
        CheckpointError: if it has weights alone, or if something differs and ``strict`` is set.
    """
    if body.get("content") != "run":
        raise CheckpointError(
            f"{what} has weights alone: a run cannot go on from it. Load it with Module.load_from_checkpoint"
        )
    found = differences(loop, body, describe_inputs(loop))
    if not body.get("exact", True):
        found.append("it was saved when an error ended the run, in the middle of a batch")
    if loop.world.size > 1:
        found = loop.world.broadcast(found)  # the record is of the main rank, as are the data that it tells of
    if found and strict:
        raise CheckpointError(f"{what} is of another run than this, and resume_strict is set:\n  " + "\n  ".join(found))
    if found and loop.world.is_main:
        warn(f"{what} is of another run than this; what differs:\n  " + "\n  ".join(found))


def finished(loop: Loop, resume: str) -> str:
    """What a run is told that was to go on from where it had ended."""
    why = loop.stop_reason or "it has had its epochs"
    new = " With another run_name, or without resume, a new run begins." if resume == "auto" else ""
    return (
        f"this run had finished at step {loop.global_step}, after {loop.epoch} epochs ({why}): nothing was trained. It goes on "
        f"if what ended it allows more, such as a higher max_epochs or max_steps.{new}"
    )


def _options(plugin: Any) -> dict[str, str]:
    return {name: shown(getattr(plugin, name)) for name in options_of(plugin)}


@cache  # to look it up takes a millisecond, as long as all else in a small checkpoint
def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
