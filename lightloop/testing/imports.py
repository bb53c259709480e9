"""Import a plugin as if only what its distribution requires were installed."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from types import ModuleType

from lightloop import Plugin


def import_without_optional(plugin: type[Plugin]) -> str | None:
    """Import the plugin's module, in a forked process, with all but the required packages hidden; what goes wrong.

    Where processes cannot be forked, nothing is tried.
    """
    if not hasattr(os, "fork"):
        return None
    allowed = _allowed(plugin.__module__)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child imports and is gone
        child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            _import_alone(plugin.__module__, allowed)
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said or None


class _Hide(MetaPathFinder):
    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top not in self.allowed:
            raise ModuleNotFoundError(
                f"{top!r} is hidden: it is no package that the plugin's distribution requires", name=top
            )
        return None


def _import_alone(module: str, allowed: set[str]) -> None:
    top = module.partition(".")[0]
    for name in list(sys.modules):
        if (
            name.partition(".")[0] not in allowed
            or name == module
            or (name.startswith(f"{top}.") and top != "lightloop")
        ):
            del sys.modules[name]
    sys.meta_path.insert(0, _Hide(allowed))
    importlib.import_module(module)


def _allowed(module: str) -> set[str]:
    """The top-level modules that may be imported."""
    top = module.partition(".")[0]
    tops: dict[str, set[str]] = {}
    for package, distributions in _packages().items():
        for distribution in distributions:
            tops.setdefault(_plain(distribution), set()).add(package)
    needed = {name for distribution in ("lightloop", *_packages().get(top, ())) for name in _closure(distribution)}
    required = {package for name in needed for package in tops.get(name, ())}
    return {top, "lightloop", "lightloop_plugins", *sys.stdlib_module_names, *required, *_without_distribution()}


@cache
def _packages() -> Mapping[str, list[str]]:
    return packages_distributions()


def _without_distribution() -> set[str]:
    """Modules that belong to no distribution: a project's own beside the tests, frozen ones, ``__main__``."""
    return {name.partition(".")[0] for name in sys.modules} - set(_packages())


def _closure(distribution: str) -> set[str]:
    """``distribution`` and all that it requires, extras left out."""
    found, waiting = set(), [distribution]
    while waiting:
        name = _plain(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            wanted = requires(name) or []
        except PackageNotFoundError:
            continue
        waiting += [text for text in wanted if "extra ==" not in text]
    return found


def _plain(name: str) -> str:
    matched = re.match(r"[\w.-]+", name)
    return re.sub(r"[-_.]+", "-", matched[0] if matched else name).lower()
