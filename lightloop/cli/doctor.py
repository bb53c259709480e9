"""``lightloop doctor``."""

from __future__ import annotations

import platform
import warnings
from importlib.metadata import PackageNotFoundError, requires, version

import torch

from lightloop.cli.front import Parser
from lightloop.host.choosing import choose
from lightloop.host.discovery import discover
from lightloop.host.found import OWN_DISTRIBUTION, Found, PluginError
from lightloop.host.keywords import claimed_twice, known_options
from lightloop.host.listing import from_environment
from lightloop.host.order import Order, OrderError
from lightloop.host.plugin import Plugin
from lightloop.host.selection import absent
from lightloop.operations import manage


def doctor(arguments: list[str]) -> int:
    """Say what is installed, what is broken and why, and which accelerators can be used; 1 where something is broken."""
    Parser("doctor", doctor).parse_args(arguments)
    broken: list[str] = []
    print(f"lightloop {version('lightloop')}, Python {platform.python_version()}, {platform.platform()}")
    for section in (_packages, _accelerators):
        print(section())
    found: dict[str, Found] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told below
        try:
            found = discover()
            broken += [claimed_twice(name, known) for name, known in known_options(found).items() if known.rivals]
            broken += choose(found, [], {}, manage, from_environment()).left_out.values()
        except (PluginError, OrderError, TypeError, ValueError) as error:
            broken.append(str(error))
    ours = sum(each.distribution == OWN_DISTRIBUTION for each in found.values())
    print(f"\nplugins: {ours} of lightloop")
    for each in found.values():
        if each.distribution != OWN_DISTRIBUTION:
            print(f"  {each}")
    hosts = [_bare(each.plugin) for each in found.values() if each.plugin and each.plugin.hookspecs]
    broken += [f"plugin {each}: {reason}" for each in found.values() if (reason := _fault(each, hosts)) is not None]
    broken += Order([], absent([], found, [])).passed_over_lines()
    for each in found.values():
        if each.left_out_by:
            print(f"  {each} is left out by {each.left_out_by}")
    print("\nbroken: " + ("nothing" if not broken else "".join(f"\n  {reason}" for reason in broken)))
    return 1 if broken else 0


def _fault(found: Found, hosts: list[Plugin]) -> str | None:
    """Why a plugin could not be live, whichever others are; ``hosts`` are those that bring hooks."""
    if found.plugin is None:
        return None if found.left_out_by else found.problem
    try:
        manage([_bare(found.plugin), *(host for host in hosts if type(host) is not found.plugin)])
    except PluginError as error:
        return str(error) if repr(found.name) in str(error) else None
    return None


def _bare(plugin: type[Plugin]) -> Plugin:
    """A plugin that has checked nothing: some need an option that has no good default."""
    return object.__new__(plugin)


def _packages() -> str:
    """What lightloop needs, and what its extras need, with what is there."""
    from packaging.requirements import Requirement

    lines = ["\npackages"]
    for text in requires("lightloop") or ():
        wanted = Requirement(text)
        extra = "" if wanted.marker is None else str(wanted.marker).partition("extra == ")[2].strip("\"'")
        if extra in ("dev", "docs", "examples"):
            continue
        there = _version(wanted.name)
        state = there or ("missing" if not extra else f"not there; pip install 'lightloop[{extra}]' brings it")
        if there and not wanted.specifier.contains(there, prereleases=True):
            state += f", and {wanted.specifier} is needed"
        lines.append(f"  {wanted.name:14} {state}")
    return "\n".join(lines)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _accelerators() -> str:
    lines = ["\naccelerators", f"  cpu            {torch.get_num_threads()} threads"]
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None:
        lines.append(f"  {found.type:14} {torch.accelerator.device_count()} devices")
    else:
        lines.append(f"  torch {torch.__version__} sees no other device")
    distributed = torch.distributed.is_available()
    backends = [name for name in ("gloo", "nccl", "mpi") if distributed and _has(name)]
    lines.append(f"  distributed    {', '.join(backends) or 'not there'}")
    return "\n".join(lines)


def _has(backend: str) -> bool:
    return bool(getattr(torch.distributed, f"is_{backend}_available")())


__all__ = ["doctor"]
