"""Find the subcommand that is asked for and run it; what goes wrong is one line and an exit code.

A subcommand is a function that takes the arguments that follow its name and returns the exit code: 0, or 1 where what
was asked about is not in order; :class:`UsageError` becomes 2. The first line of its docstring is its help. Distributions
bring theirs by an entry point of the group ``lightloop.commands``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import NoReturn

from lightloop.host.discovery import read_entry_points
from lightloop.host.found import PluginError
from lightloop.host.local import LOCAL
from lightloop.host.nearest import nearest
from lightloop.host.order import OrderError

GROUP = "lightloop.commands"

Command = Callable[[list[str]], int]


class UsageError(Exception):
    """The command was not given what it needs, or something that makes no sense."""


class Parser(argparse.ArgumentParser):
    """An argument parser for the subcommand ``name``, whose errors are one line."""

    def __init__(self, name: str, command: Command) -> None:
        super().__init__(f"lightloop {name}", description=command.__doc__, allow_abbrev=False)
        self.formatter_class = argparse.RawDescriptionHelpFormatter

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError`."""
        raise UsageError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments``, by default those of the process, and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare(os.environ, Path.cwd())
    commands: dict[str, list[EntryPoint]] = {}
    for entry in read_entry_points(GROUP)[0]:
        if all(other.value != entry.value for other in commands.setdefault(entry.name, [])):
            commands[entry.name].append(entry)
    name = given[0] if given else "--help"
    if name in ("-h", "--help"):
        print(overview(commands))
        return 0 if given else 2
    if name == "--version":
        print(f"lightloop {version('lightloop')}")
        return 0
    try:
        if name not in commands:
            raise UsageError(f"there is no command {name!r}.{nearest(name, commands)} See lightloop --help")
        return _load(*commands[name])(given[1:])
    except (UsageError, PluginError, OrderError) as error:
        where = f"lightloop {name}" if name in commands else "lightloop"
        print(f"{where}: {error}", file=sys.stderr)
        return 2
    except SystemExit as ended:  # --help
        return ended.code if isinstance(ended.code, int) else 0
    except BrokenPipeError:  # whoever read has seen enough, such as `head`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the flush at exit
        return 0


def overview(commands: Mapping[str, Sequence[EntryPoint]]) -> str:
    """What there is, a line for each command."""
    width = max(map(len, commands), default=0)
    lines = ["usage: lightloop COMMAND ...", ""]
    for name, entries in sorted(commands.items()):
        try:
            said = (_load(*entries).__doc__ or "").strip().partition("\n")[0]
        except UsageError as error:
            said = str(error)
        lines.append(f"  {name:{width}}  {said}")
    return "\n".join([*lines, "", "lightloop COMMAND --help says more; lightloop --version says which one this is."])


def _load(entry: EntryPoint, *others: EntryPoint) -> Command:
    if others:
        owners = " and ".join(
            f"{each.dist.metadata['Name'] if each.dist else '?'} ({each.value})" for each in (entry, *others)
        )
        raise UsageError(f"command {entry.name!r} is brought by {owners}: uninstall one of them")
    try:
        return entry.load()  # type: ignore[no-any-return]
    except Exception as error:
        origin = f" of {entry.dist.metadata['Name']}" if entry.dist else ""
        raise UsageError(f"command {entry.name!r}{origin} is broken: {type(error).__name__}: {error}") from error


def _prepare(environ: dict[str, str] | os._Environ[str], here: Path) -> None:
    """Let ``module:Class`` and the plugin file of the folder in which the command is run be found, by its processes too."""
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    if (local := here / f"{LOCAL}.py").is_file():
        environ.setdefault("LIGHTLOOP_LOCAL", str(local))
