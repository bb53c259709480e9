"""Classes and functions that the command line names: ``package.module:Class`` or ``path/to/file.py:Class``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lightloop.cli.front import UsageError
from lightloop.host.local import import_file
from lightloop.host.nearest import nearest


def find(name: str, what: str) -> Any:
    """What ``name`` is the name of; ``what`` is the option that has it."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise UsageError(f"{what} must be 'package.module:Name' or 'file.py:Name'; it is {name!r}")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise UsageError(f"{what} {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise UsageError(f"{what} {name!r}: {place} has no {attribute!r}.{nearest(attribute, vars(module))}".rstrip())
    return found


def load(given: Mapping[str, Any], what: str) -> Any:
    """Call what ``given`` names as ``what``, with its arguments; what is no class or function is taken as it is."""
    if not given.get(what):
        raise UsageError(f"which {what}? Give --{what} package.module:Name")
    found = find(given[what], what)
    arguments = given.get(f"{what}_args") or {}
    if not callable(found) or (what == "module" and hasattr(found, "parameters") and not isinstance(found, type)):
        return found
    try:
        return found(**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} {given[what]!r} refuses its arguments: {error}") from error


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    path = path.absolute()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as for a program: what is beside it can be imported
    return import_file(path, path.stem)
