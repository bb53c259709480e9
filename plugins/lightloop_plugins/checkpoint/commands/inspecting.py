"""``lightloop checkpoint inspect``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightloop.cli.front import Parser
from lightloop_plugins.checkpoint.commands.listing import saved_at
from lightloop_plugins.checkpoint.commands.places import checkpoint
from lightloop_plugins.checkpoint.commands.reading import Named, Reader
from lightloop_plugins.checkpoint.commands.text import as_json, printable, size, table

HEAD = ("checkpoint", "saved_at", "format", "run", "parent", "resumed_from", "content", "exact", "imported")


def inspect(arguments: list[str]) -> int:
    """Show what is in a checkpoint: counters, plugins, options, environment, and each tensor's shape, type and size."""
    parser = Parser("checkpoint inspect", inspect)
    parser.add_argument("place", metavar="PLACE", help="a checkpoint; of a folder or a run, the newest is taken")
    parser.add_argument("--json", action="store_true", help="print JSON")
    said = parser.parse_args(arguments)
    with Reader(checkpoint(said.place)) as reader:
        tensors, state = reader.tensors(), reader.state()
    manifest = reader.manifest
    about = {
        "checkpoint": reader.place.path,
        "saved_at": saved_at(reader.place, manifest),
        **{name: value for name, value in manifest.body.items() if name != "files"},
        "files": {name: {"size": count, "sha256": digest} for name, (count, digest) in manifest.files.items()},
        "hparams": {name: str(v) if isinstance(v, Named) else v for name, v in state.get("hparams", {}).items()},
        "tensors": {name: {"shape": s.shape, "dtype": s.kind, "size": s.size} for name, s in sorted(tensors.items())},
    }
    print(as_json(about) if said.json else _report(about))
    return 0


def _report(about: Mapping[str, Any]) -> str:
    plugins = [(key, module, f"state {version}") for key, module, version in about["plugins"]]
    options = {key: ", ".join(f"{n}={v}" for n, v in its.items()) for key, its in about["options"].items() if its}
    rows = [(name, list(each["shape"]), each["dtype"], size(each["size"])) for name, each in about["tensors"].items()]
    whole = size(sum(each["size"] for each in about["tensors"].values()))
    parts = [
        _lines({name: about[name] for name in HEAD if about.get(name) is not None}),
        _section("counters", {"step": about["step"], "batch": about["batch"], **about["counters"]}),
        _section("metrics", about["metrics"]),
        _section("partial: it lacks these tensors of the module", _lacks(about.get("partial", {}))),
        _section("hyperparameters", about["hparams"]),
        "plugins, in their order\n" + _indented(table((), plugins)) if plugins else "",
        _section("options", options),
        _section("environment", about["environment"]),
        _section("files", {name: size(each["size"]) for name, each in about["files"].items()}),
        f"{len(rows)} tensors, {whole}\n" + _indented(table(("NAME", "SHAPE", "TYPE", "SIZE"), rows)),
    ]
    return "\n\n".join(part for part in parts if part)


def _lacks(partial: Mapping[str, Any]) -> dict[str, str]:
    return dict.fromkeys(partial.get("left_out", ()), "") | ({"base": partial["base"]} if partial else {})


def _section(title: str, values: Mapping[str, Any]) -> str:
    return f"{title}\n{_indented(_lines(values))}" if values else ""


def _lines(values: Mapping[str, Any]) -> str:
    width = max((len(str(name)) for name in values), default=0)
    return "\n".join(printable(f"{name!s:{width}}  {value}".strip()) for name, value in values.items())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
