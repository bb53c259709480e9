"""``lightloop hooks``."""

from __future__ import annotations

import inspect
from typing import Any

from lightloop.cli.front import Parser, UsageError
from lightloop.hookspecs import Hooks
from lightloop.host.nearest import nearest

SPECS = {name: spec for name, spec in vars(Hooks).items() if hasattr(spec, "lightloop_spec")}


def hooks(arguments: list[str]) -> int:
    """Print the hooks that plugins implement, in the order of a run: the contract."""
    parser = Parser("hooks", hooks)
    parser.add_argument("names", nargs="*", metavar="NAME", help="hooks, instead of all")
    names = parser.parse_args(arguments).names
    for name in names:
        if name not in SPECS:
            raise UsageError(f"there is no hook {name!r}.{nearest(name, SPECS)}")
    print("\n\n".join(contract(name, SPECS[name]) for name in names or SPECS))
    return 0


def contract(name: str, spec: Any) -> str:
    """Signature and docstring of one hook, with what its answers are for."""
    signature = str(inspect.signature(spec)).replace("'", "")
    kind = "the first answer that is not None counts" if spec.lightloop_spec["firstresult"] else "everybody is told"
    doc = inspect.getdoc(spec) or ""
    return "\n".join([f"{name}{signature}    # {kind}", *(f"    {line}".rstrip() for line in doc.splitlines())])
