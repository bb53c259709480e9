"""``lightloop checkpoint``: its actions, each a function of the arguments that follow its name."""

from __future__ import annotations

import sys
from collections.abc import Callable

from lightloop.cli.front import Parser
from lightloop_plugins.checkpoint.commands.compare import diff
from lightloop_plugins.checkpoint.commands.exchange import export, import_
from lightloop_plugins.checkpoint.commands.inspecting import inspect
from lightloop_plugins.checkpoint.commands.listing import list_, verify
from lightloop_plugins.checkpoint.errors import CheckpointError

ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "list": list_,
    "inspect": inspect,
    "verify": verify,
    "diff": diff,
    "export": export,
    "import": import_,
}


def checkpoint(arguments: list[str]) -> int:
    """List, inspect, verify and compare checkpoints, and exchange weights with others."""
    parser = Parser("checkpoint", checkpoint)
    parser.add_argument("action", choices=ACTIONS, help="what to do; lightloop checkpoint ACTION --help says more")
    width = max(map(len, ACTIONS))
    parser.epilog = "\n".join(f"  {name:{width}}  {action.__doc__}" for name, action in ACTIONS.items())
    action = parser.parse_args(arguments[:1]).action
    try:
        return ACTIONS[action](arguments[1:])
    except (CheckpointError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"lightloop checkpoint {action}: {error}", file=sys.stderr)
        return 1
