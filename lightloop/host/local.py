"""The plugins of one project: those in a file beside the program that runs."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from lightloop.host.found import Found, PluginError, unsuited
from lightloop.host.plugin import Plugin

LOCAL = "lightloop_local"
"""The name of the file, and of its module."""


def local_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file, if there is one: the one that ``LIGHTLOOP_LOCAL`` names, or ``lightloop_local.py`` beside the program."""
    told = environ.get("LIGHTLOOP_LOCAL", "")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if told == "0" or not (told or main):
        return None
    path = Path(told) if told else Path(main).with_name(f"{LOCAL}.py")  # type: ignore[arg-type]
    return path.absolute() if path.is_file() else None


def local_plugins(environ: Mapping[str, str]) -> list[Found]:
    """The plugins that the file defines; a broken file is found under its own name."""
    path = local_file(environ)
    if path is None:
        return []
    try:
        module = import_file(path, LOCAL)
    except (Exception, SystemExit) as error:
        return [Found(LOCAL, str(path), path.name, "", error=error)]
    kinds = dict.fromkeys(kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Plugin))
    return [_found(kind, path) for kind in kinds if kind.__module__ == LOCAL and hasattr(kind, "name")]


def _found(kind: type[Plugin], path: Path) -> Found:
    found, reason = Found(kind.name, f"{path}:{kind.__name__}", path.name, ""), unsuited(kind)
    return replace(found, plugin=kind) if reason is None else replace(found, error=PluginError(reason))


def import_file(path: Path, name: str) -> ModuleType:
    """The module ``name``, made from the file ``path`` where it is not that already."""
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__ or "") == path:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
