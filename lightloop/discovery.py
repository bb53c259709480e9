"""Find the installed plugins, without letting a broken one stop the others."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from types import ModuleType

from lightloop.plugin import Plugin

GROUP = "lightloop.plugins"
LOCAL = "lightloop_local"
"""The name of the file, and of its module, that has the plugins of one project."""


class PluginError(Exception):
    """A plugin is missing, broken, or at odds with another."""


@dataclass(frozen=True)
class Found:
    """An installed plugin: its class, or what keeps it out."""

    name: str
    value: str
    """Where it is: ``package.module:Class``."""
    distribution: str
    version: str
    plugin: type[Plugin] | None = None
    error: BaseException | None = None
    left_out_by: str | None = None
    """The environment variable that keeps it out, if one does."""

    @property
    def problem(self) -> str | None:
        """Why there is no class, as the end of a sentence that begins with the plugin's name."""
        if self.left_out_by:
            return f"is left out by {self.left_out_by}"
        if isinstance(self.error, PluginError):
            return str(self.error)
        return f"cannot be imported: {type(self.error).__name__}: {self.error}" if self.error else None

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}".rstrip()


def discover(entries: Iterable[EntryPoint] | None = None, environ: Mapping[str, str] = os.environ) -> dict[str, Found]:
    """The plugins of all installed distributions by name, in the order of their names.

    ``LIGHTLOOP_WITHOUT=a,b`` leaves plugins out before anything of theirs is imported, ``LIGHTLOOP_DISCOVER=0`` all that
    are not Lightloop's own. One that cannot be imported is warned of; with ``LIGHTLOOP_STRICT=1`` it is an error.

    The plugins of a file ``lightloop_local.py`` beside the program that runs are among them; ``LIGHTLOOP_LOCAL`` has the
    path of another, or 0 for none.

    Raises:
        PluginError: if two distributions give different plugins one name, or a plugin is broken under
            ``LIGHTLOOP_STRICT=1``.
    """
    without = {name.strip() for name in environ.get("LIGHTLOOP_WITHOUT", "").split(",")}
    own_only = environ.get("LIGHTLOOP_DISCOVER", "1") == "0"
    installed = sorted(entry_points(group=GROUP) if entries is None else entries, key=lambda entry: entry.name)
    with _collector_at_rest(installed):
        found, left_out = _installed(installed, without, own_only)
    for local in _local(environ) if not own_only and LOCAL not in without else ():
        if (other := found.get(local.name)) is not None:
            raise PluginError(
                f"a plugin of {local.value.partition(':')[0]} and one of {other.distribution} ({other.value}) are both called "
                f"{local.name!r}. Rename yours, or set LIGHTLOOP_WITHOUT={local.name} to run without both"
            )
        to = left_out if local.name in without else found
        to[local.name] = replace(local, left_out_by="LIGHTLOOP_WITHOUT") if local.name in without else local
    for each in found.values():
        if each.error is not None:
            message = f"plugin {each} is left out; it {each.problem}"
            if environ.get("LIGHTLOOP_STRICT", "0") == "1":
                raise PluginError(message) from each.error
            _tell(message)
    return dict(sorted({**left_out, **found}.items()))


def _installed(
    entries: Iterable[EntryPoint], without: set[str], own_only: bool
) -> tuple[dict[str, Found], dict[str, Found]]:
    """The plugins of ``entries`` by name, and those that are left out."""
    origin = _origins()
    found: dict[str, Found] = {}
    left_out: dict[str, Found] = {}
    for entry in entries:
        distribution, version = origin(entry)
        if entry.name in without or (own_only and distribution != "lightloop"):
            by = "LIGHTLOOP_WITHOUT" if entry.name in without else "LIGHTLOOP_DISCOVER=0"
            left_out[entry.name] = Found(entry.name, entry.value, distribution, version, left_out_by=by)
            continue
        if (other := found.get(entry.name)) is not None:
            if other.value == entry.value:
                continue
            raise PluginError(
                f"two distributions call a plugin {entry.name!r}: {other.distribution} ({other.value}) and {distribution} "
                f"({entry.value}). Uninstall one of them, or set LIGHTLOOP_WITHOUT={entry.name} to run without both"
            )
        found[entry.name] = _load(entry, distribution, version)
    return found, left_out


@contextmanager
def _collector_at_rest(entries: Sequence[EntryPoint]) -> Iterator[None]:
    """Before the first import, spare the garbage collector all that is there already.

    So many imports bring about a collection that would look through all of torch, which takes longer than they do.
    """
    if gc.get_freeze_count() or any(entry.module in sys.modules for entry in entries):
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _origins() -> Callable[[EntryPoint], tuple[str, str]]:
    """Name and version of an entry point's distribution, whose metadata is parsed once and not once per entry point."""
    known: dict[int, tuple[str, str]] = {}

    def origin(entry: EntryPoint) -> tuple[str, str]:
        if entry.dist is None:
            return "an unknown distribution", ""
        if id(entry.dist) not in known:
            metadata = entry.dist.metadata
            known[id(entry.dist)] = metadata["Name"], metadata["Version"]
        return known[id(entry.dist)]

    return origin


@cache
def _tell(message: str) -> None:
    """Warn, once in a process."""
    warnings.warn(message, stacklevel=5)  # where the Trainer was made


def _load(entry: EntryPoint, distribution: str, version: str) -> Found:
    try:
        plugin = entry.load()
        if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
            raise TypeError(f"{entry.value} is not a subclass of lightloop.Plugin")
        if not hasattr(plugin, "name"):
            raise TypeError(f"{entry.value} has no name")
        if plugin.name != entry.name:
            raise ValueError(f"its entry point is called {entry.name!r} and its class {plugin.name!r}; they must agree")
        if (reason := unsuited(plugin)) is not None:
            raise PluginError(reason)
    except (Exception, SystemExit) as error:
        return Found(entry.name, entry.value, distribution, version, error=error)
    plugin.distribution = f"{distribution} {version}".rstrip()
    return Found(entry.name, entry.value, distribution, version, plugin)


def unsuited(plugin: type[Plugin]) -> str | None:
    """Why a plugin does not work with this Lightloop, as the end of a sentence; None if it does."""
    if plugin.works_with is None:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        versions = SpecifierSet(plugin.works_with)
    except InvalidSpecifier:
        return f"has works_with = {plugin.works_with!r}, which is no specifier of PEP 440, such as '>=0.1,<2'"
    if versions.contains(here := _own_version(), prereleases=True):
        return None
    return f"works with lightloop {plugin.works_with}, and this is {here}: install another version of one of them"


@cache
def _own_version() -> str:
    return version("lightloop")


def local_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that has the plugins of the program that runs, if there is one."""
    told = environ.get("LIGHTLOOP_LOCAL", "")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if told == "0" or not (told or main):
        return None
    path = Path(told) if told else Path(main).with_name(f"{LOCAL}.py")  # type: ignore[arg-type]
    return path.absolute() if path.is_file() else None


def _local(environ: Mapping[str, str]) -> list[Found]:
    path = local_file(environ)
    if path is None:
        return []
    try:
        module = _imported(path)
    except (Exception, SystemExit) as error:
        return [Found(LOCAL, str(path), path.name, "", error=error)]
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Plugin)]
    found = {}
    for kind in classes:
        if kind.__module__ == LOCAL and hasattr(kind, "name"):
            reason, value = unsuited(kind), f"{path}:{kind.__name__}"
            refused = None if reason is None else PluginError(reason)
            found[kind] = Found(kind.name, value, path.name, "", None if refused else kind, refused)
    return list(found.values())


def _imported(path: Path) -> ModuleType:
    known = sys.modules.get(LOCAL)
    if known is not None and Path(known.__file__ or "") == path:
        return known
    spec = importlib.util.spec_from_file_location(LOCAL, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[LOCAL] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[LOCAL]
        raise
    return module
