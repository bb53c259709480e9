"""Write lightloop/trainer_options.pyi, which tells type checkers and editors the options of the built-in plugins.

python scripts/options_stub.py           writes it
python scripts/options_stub.py --check   fails where it is out of date
"""

from __future__ import annotations

import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any

from lightloop.host.keywords import kinds, known_options
from lightloop.host.options import default_of, hints_of
from lightloop.toolkit import discover

ABSTRACT = ("Callable", "Iterable", "Mapping", "Sequence")
STUB = Path(__file__).parents[1] / "lightloop" / "trainer_options.pyi"
HEAD = '''"""The constructor of Trainer with the options of the built-in plugins; written by scripts/options_stub.py."""

{imports}

Choice = bool | str | Plugin | type[Plugin] | Sequence[str | Plugin | type[Plugin]] | None

class TrainerOptions:
    def __init__(
        self,
        plugins: Sequence[str | type[Plugin] | Plugin] | str | type[Plugin] | Plugin = (),
        *,
{parameters}
        **options: Any,
    ) -> None:
        """Choose the plugins of the runs, and set their options; those of third-party plugins are options too.

        Args:
            plugins: what to add to the default plugins (``"ema"``), or to leave out (``"-progress"``).
{sentences}
            options: options of plugins of other distributions.
        """
'''


def main() -> int:
    """Write the stub, or compare it."""
    text = stub()
    if "--check" in sys.argv[1:]:
        if STUB.read_text() == text:
            return 0
        print(f"{STUB.name} is out of date: run python scripts/options_stub.py", file=sys.stderr)
        return 1
    STUB.write_text(text)
    return 0


def stub() -> str:
    """The text of the file."""
    found = {name: each for name, each in discover(environ={"LIGHTLOOP_DISCOVER": "0"}).items() if each.plugin}
    options = {option.keyword: option for option in known_options(found).values()}
    modules: set[str] = set()
    lines, sentences = {}, {}
    for keyword, option in options.items():
        hint = shown(hints_of(option.plugin).get(option.field.name, Any), modules)
        if keyword in kinds(found.values()):
            hint = "Choice"
        lines[keyword] = f"{keyword}: {hint} = {default(default_of(option.field))},"
        sentences[keyword] = f"{keyword}: {option.option.help}"
    for kind in kinds(found.values()) - options.keys():
        lines[kind] = f"{kind}: Choice = None,"
        sentences[kind] = f"{kind}: the plugins of this kind, by name or as objects; False for none."
    types = ["Sequence", *lines.values()]
    imports = [
        *(f"import {module}" for module in sorted(modules)),
        f"from collections.abc import {', '.join(name for name in ABSTRACT if any(name in line for line in types))}",
        "from typing import Any, Literal",
        "",
        "from lightloop.host.plugin import Plugin",
    ]
    text = HEAD.format(
        imports="\n".join(imports),
        parameters="\n".join(f"        {lines[keyword]}" for keyword in sorted(lines)),
        sentences="\n".join(f"            {sentences[keyword]}" for keyword in sorted(sentences)),
    )
    ruff = [str(Path(sys.executable).with_name("ruff")), "format", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout


def shown(hint: Any, modules: set[str]) -> str:
    """A type as it is written; ``modules`` takes in those that have to be imported."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "None"
    if origin in (typing.Union, UnionType):
        return " | ".join(dict.fromkeys(shown(part, modules) for part in parts))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin is Callable or hint is Callable:
        return "Callable[..., Any]"
    if origin is not None:
        inner = ", ".join("..." if part is Ellipsis else shown(part, modules) for part in parts)
        return f"{shown(origin, modules)}[{inner}]"
    if hint is Any or not isinstance(hint, type):
        return "Any"
    if hint.__module__ == "collections.abc" or hint.__module__ == "builtins":
        return hint.__name__
    if hint.__module__.startswith("lightloop"):
        return "Any"
    module = hint.__module__.split("._")[0]
    modules.add(module)
    return f"{module}.{hint.__qualname__}"


def default(value: Any) -> str:
    """A default value as it is written."""
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "..."


if __name__ == "__main__":
    sys.exit(main())
