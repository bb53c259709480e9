"""Options and plugins as commands are given them: ``--config FILE``, ``--plugins ema,-progress``, ``--max_epochs 3``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightloop.cli.front import UsageError
from lightloop.host.listing import from_environment

NOT_OPTIONS = ("module", "module_args", "data", "data_args", "weights", "output")
"""What the config of a run has beside the Trainer's options."""


def read_options(arguments: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """The plugins and the Trainer's options in ``arguments``; what comes later counts, and plugins add up."""
    plugins: list[str] = []
    options: dict[str, Any] = {}
    for name, value in _pairs(list(arguments)):
        if name == "config":
            config = read_config(Path(value))
            plugins += listed(config.pop("plugins", ()))
            options |= {key: each for key, each in config.items() if key not in NOT_OPTIONS}
        elif name == "plugins":
            plugins += listed(value)
        else:
            options[name.replace("-", "_")] = read_value(value)
    return plugins, options


def listed(plugins: Any) -> list[str]:
    """A list of plugins that may be one string with commas, and may have brackets around it."""
    if isinstance(plugins, str):
        return from_environment({"LIGHTLOOP_PLUGINS": plugins.strip().removeprefix("[").removesuffix("]")})
    if not all(isinstance(entry, str) for entry in plugins):
        raise UsageError(f"plugins must be a list of names, '-name' and 'module:Class'; it is {plugins!r}")
    return list(plugins)


def read_value(text: str) -> Any:
    """A value as it is written on a command line: JSON, ``None``, ``True`` or ``False``, else the text itself."""
    known = {"None": None, "True": True, "False": False}
    if text in known:
        return known[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in a file of JSON or YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"config {path} cannot be read: {error.strerror}") from error
    try:
        config = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise UsageError(f"config {path} is not well formed: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise UsageError(f"config {path} must be a mapping of options; it is {type(config).__name__}")
    return config


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise UsageError("a config of YAML needs pyyaml: pip install 'lightloop[cli]', or write JSON") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _pairs(arguments: list[str]) -> Iterable[tuple[str, str]]:
    while arguments:
        word = arguments.pop(0)
        if not word.startswith("--"):
            raise UsageError(f"{word!r} is no option: write --NAME VALUE")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not arguments or arguments[0].startswith("--"):
                raise UsageError(f"--{name} needs a value: write --{name} VALUE")
            value = arguments.pop(0)
        yield name, value


def joined(arguments: list[str], flag: str) -> list[str]:
    """``arguments`` with the value of ``flag`` behind an equals sign."""
    words: list[str] = []
    for word in arguments:
        if words and words[-1] == flag:
            words[-1] = f"{flag}={word}"
        else:
            words.append(word)
    return words


def find_values(arguments: list[str], names: Iterable[str]) -> dict[str, str]:
    """The strings that options called ``names`` have on the command line, or else in a config that it names."""
    found: dict[str, str] = {}
    for index, word in enumerate(arguments):
        name, equals, value = word.removeprefix("--").partition("=")
        value = value if equals else "".join(arguments[index + 1 : index + 2])
        if word.startswith("--") and name in names and value:
            found[name] = value
        elif word.startswith("--") and name == "config" and value:
            config = read_config(Path(value))
            found |= {each: config[each] for each in names if isinstance(config.get(each), str)}
    return found
