"""``lightloop fit``, ``validate``, ``test`` and ``predict``."""

from __future__ import annotations

import json
import os
import secrets
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightloop.cli.front import UsageError
from lightloop.cli.objects import load
from lightloop.cli.options import joined, listed
from lightloop.cli.parser import make_parser
from lightloop.exceptions import notes_of
from lightloop.hookspecs import hookimpl
from lightloop.host.found import PluginError
from lightloop.host.order import OrderError
from lightloop.host.plugin import Plugin
from lightloop.loop import Loop
from lightloop.randomness import seed_everything
from lightloop.state import Stage
from lightloop.toolkit.files import replace_in
from lightloop.trainer import Result, Trainer

KEYS = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}
"""Under which key of a mapping that the data function returns the data of a stage are."""


def fit(arguments: list[str]) -> int:
    """Train a module; every option of every plugin is an option here, see lightloop fit --help."""
    return run("fit", arguments)


def validate(arguments: list[str]) -> int:
    """Run the validation step of a module over data, and print the metrics."""
    return run("validate", arguments)


def test(arguments: list[str]) -> int:
    """Run the test step of a module over data, and print the metrics."""
    return run("test", arguments)


def predict(arguments: list[str]) -> int:
    """Run a module over data, and keep what it returns."""
    return run("predict", arguments)


class KeepConfig(Plugin):
    """Write the config of the run into its directory, so that ``lightloop fit --config`` can do it again."""

    name = "keep_config"
    after = ("run_dir", "checkpoint")
    ranks = "main"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @hookimpl
    def before_epoch(self, loop: Loop) -> None:
        directory = getattr(loop.trainer, "run_dir", None)
        if directory is not None:
            with replace_in(directory, "config.yaml", encoding="utf-8") as file:
                file.write(self.text)
        loop.opt_out(self)


def run(stage: Stage, arguments: list[str]) -> int:
    """Do one stage as ``arguments`` say; an error in it is 1, and one in what was asked for raises UsageError."""
    arguments = joined(arguments, "--plugins")  # for argparse, what begins with - is an option
    parser = make_parser(stage, arguments)
    config = parser.parse_args(arguments)
    given: dict[str, Any] = {name: value for name, value in config.as_dict().items() if name != "config"}
    if "seed" in parser.options and given.get("seed") is None:
        # Kept in the config: without it nothing would reproduce the run. Processes that train together need the same.
        given["seed"] = config["seed"] = 0 if os.environ.get("WORLD_SIZE", "1") != "1" else secrets.randbelow(2**32)
    config.pop("output", None)  # another run has another
    seed_everything(given.get("seed") or 0)
    module = load(given, "module")
    if not isinstance(module, nn.Module):
        raise UsageError(f"module {given['module']!r} is no torch.nn.Module; it is {type(module).__name__}")
    if given.get("weights"):
        module.load_state_dict(_weights(given["weights"]))
    data = load(given, "data") if given.get("data") else None
    options = {name: value for name, value in given.items() if name in parser.options}
    try:
        trainer = _trainer(stage, listed(given.get("plugins", ())), options, parser.dump(config, skip_none=False))
        return _do(stage, trainer, module, data, given)
    except (PluginError, OrderError, UsageError):
        raise
    except (TypeError, ValueError) as error:
        if _began(error):
            return _failed(stage, error)
        raise UsageError(str(error)) from error
    except Exception as error:
        return _failed(stage, error)


def _trainer(stage: Stage, plugins: list[str], options: Mapping[str, Any], config: str) -> Trainer:
    trainer = Trainer(plugins, **options)
    if stage != "fit" or not any(plugin.name == "run_dir" for plugin in trainer.plugins):
        return trainer
    return Trainer([*plugins, KeepConfig(config)], **options)


def _do(stage: Stage, trainer: Trainer, module: nn.Module, data: Any, given: Mapping[str, Any]) -> int:
    """Do the stage; of several processes, the main one tells how it went and writes what was asked for."""
    output = os.path.abspath(given["output"]) if given.get("output") else None  # the module may go elsewhere
    if stage == "fit":
        result = trainer.fit(module, _of(stage, data), data.get("val") if isinstance(data, Mapping) else None)
        if trainer.is_global_zero:
            _tell(result)
            if output:
                torch.save(module.state_dict(), output)
    elif stage == "predict":
        outputs = trainer.predict(module, _of(stage, data))
        if trainer.is_global_zero:
            torch.save(outputs, output or "predictions.pt")
    else:
        metrics = (trainer.validate if stage == "validate" else trainer.test)(module, _of(stage, data))
        if trainer.is_global_zero:
            _show(metrics)
            if output:
                Path(output).write_text(json.dumps(metrics), encoding="utf-8")
    return 0


def _tell(result: Result) -> None:
    for name, reason in result.disabled.items():
        print(f"plugin {name} was out: {reason}")
    why = f" ({result.reason})" if result.reason else ""
    print(f"{result.status}{why} after {result.epoch} epochs and {result.global_step} steps")
    _show(result.metrics)


def _of(stage: Stage, data: Any) -> Any:
    """The part of what the data function gave that is for ``stage``."""
    if isinstance(data, Mapping) and set(data) <= set(KEYS.values()):
        if KEYS[stage] not in data:
            raise UsageError(f"the data function gives {', '.join(data)}, and nothing under {KEYS[stage]!r} to {stage}")
        return data[KEYS[stage]]
    return data


def _weights(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"weights {path} cannot be read: {' '.join(str(error).split())}") from error


def _show(metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        print(f"{name} = {value:.6g}")


def _began(error: BaseException) -> bool:
    """Whether an error was raised inside a run: those have a note on the place."""
    return any(note.startswith("at epoch ") for note in notes_of(error))


def _failed(stage: Stage, error: Exception) -> int:
    traceback.print_exception(error)
    where = "; ".join(notes_of(error))
    print(f"lightloop {stage}: {type(error).__name__}: {error}" + (f" ({where})" if where else ""), file=sys.stderr)
    return 1


__all__ = ["KeepConfig", "fit", "predict", "run", "test", "validate"]
