"""``lightloop checkpoint diff``: in what two checkpoints differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lightloop.cli.front import Parser
from lightloop_plugins.checkpoint.commands.places import Place, checkpoint
from lightloop_plugins.checkpoint.commands.reading import Named, Reader
from lightloop_plugins.checkpoint.commands.text import as_json, printable, table

SECTIONS = ("counters", "metrics", "plugins", "options", "environment")
"""What of the manifests is compared."""
ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """One value that two checkpoints do not have in common."""

    path: str
    one: Any
    other: Any
    largest: float | None = None
    """Of tensors of one shape: the largest absolute difference between two elements."""
    elements: int | None = None
    """In how many elements they differ."""

    def __str__(self) -> str:
        if self.largest is None:
            return f"{self.path}: {self.one} -> {self.other}"
        return f"{self.path}: {self.one}, {self.elements} values differ, by up to {self.largest:.3g}"


def diff(arguments: list[str]) -> int:
    """Show in what two checkpoints differ: counters, options, plugins, and which tensors by how much; 1 if they do."""
    parser = Parser("checkpoint diff", diff)
    parser.add_argument(
        "places", nargs=2, metavar="PLACE", help="a checkpoint; of a folder or a run, the newest is taken"
    )
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="show so many differences of each kind; 0 all"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all of them")
    said = parser.parse_args(arguments)
    one, other = map(checkpoint, said.places)
    about = list(of_manifests(one, other))
    state = list(of_states(one, other))
    if said.json:
        print(as_json({"manifest": [asdict(each) for each in about], "state": [asdict(each) for each in state]}))
    else:
        print("\n".join([printable(f"- {one.path}"), printable(f"+ {other.path}"), *_report(about, state, said.limit)]))
    return 1 if about or state else 0


def of_manifests(one: Place, other: Place) -> Iterator[Difference]:
    """Where the manifests differ in what they say of the runs."""
    bodies = [place.manifest().body for place in (one, other)]
    for section in SECTIONS:
        values = [_section(body.get(section, {})) for body in bodies]
        for path in dict.fromkeys([*values[0], *values[1]]):
            a, b = (each.get(path, ABSENT) for each in values)
            if a != b:
                yield Difference(f"{section}.{path}", a, b)
        if section == "plugins":
            yield from _order(*bodies)


def of_states(one: Place, other: Place) -> Iterator[Difference]:
    """Where the states differ, in the order in which they are put back; tensors are read one after another.

    Raises:
        CheckpointError: if one of the two is damaged.
    """
    with Reader(one) as first, Reader(other) as second:
        first.verify()
        second.verify()
        a, b = first.values(), second.values()
        for path in dict.fromkeys([*a, *b]):
            found = _compare(path, a.get(path, ABSENT), b.get(path, ABSENT), first, second)
            if found is not None:
                yield found


def _compare(path: str, a: Any, b: Any, first: Reader, second: Reader) -> Difference | None:
    if not isinstance(a, Named) or not isinstance(b, Named):
        same = type(a) is type(b) and (a == b or (a != a and b != b))
        return None if same else Difference(path, _shown(a), _shown(b))
    if (a.slot.dtype, a.slot.shape) != (b.slot.dtype, b.slot.shape):
        return Difference(path, _shown(a), _shown(b))
    largest, elements = distance(first.read(a.name, a.slot), second.read(b.name, b.slot))
    return Difference(path, _shown(a), _shown(b), largest, elements) if elements else None


def distance(a: Tensor, b: Tensor) -> tuple[float, int]:
    """The largest absolute difference between two elements, and in how many the bits differ; NaN equals itself."""
    width = (a.element_size(),)
    bits = [each.reshape(-1, 1).view(torch.uint8).reshape(-1, *width) for each in (a, b)] if a.numel() else [a, b]
    odd = (bits[0] != bits[1]).reshape(-1, *width).any(1) if a.numel() else torch.zeros(0, dtype=torch.bool)
    if not odd.any():
        return 0.0, 0
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    gap = (a.reshape(-1)[odd].to(wide) - b.reshape(-1)[odd].to(wide)).abs()
    return float(gap.max()) if not gap.isnan().any() else math.nan, int(odd.sum())


def _section(value: Any) -> dict[str, Any]:
    """What one section of a manifest says, by path."""
    if isinstance(value, Mapping):
        nested = {
            f"{name}.{key}": part
            for name, its in value.items()
            if isinstance(its, Mapping)
            for key, part in its.items()
        }
        return {**{name: each for name, each in value.items() if not isinstance(each, Mapping)}, **nested}
    return {str(key): f"{module}, state {version}" for key, module, version in value}


def _order(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    """The plugins that both have, if they are in another order."""
    keys = [[str(row[0]) for row in body.get("plugins", ())] for body in (one, other)]
    common = [[key for key in own if key in theirs] for own, theirs in (keys, keys[::-1])]
    if common[0] != common[1]:
        yield Difference("plugins.their order", ", ".join(common[0]), ", ".join(common[1]))


def _shown(value: Any) -> Any:
    return str(value) if isinstance(value, Named) else value


def _report(about: list[Difference], state: list[Difference], limit: int) -> list[str]:
    values = [each for each in state if each.largest is None]
    tensors = [each for each in state if each.largest is not None]
    lines = []
    for section in SECTIONS:
        lines += _part(section, [each for each in about if each.path.startswith(section)], limit)
    lines += _part("values of the state", values, limit)
    lines += _part("tensors", tensors, limit)
    return lines or ["", "they are the same"]


def _part(title: str, found: list[Difference], limit: int) -> list[str]:
    if not found:
        return []
    head = ("NAME", "TYPE AND SHAPE", "DIFFER", "BY UP TO") if title == "tensors" else ()
    rows = [
        (each.path, each.one, each.elements, f"{each.largest:.3g}")
        if each.largest is not None
        else (each.path.removeprefix(f"{title}."), each.one, "->", each.other)
        for each in (found[:limit] if limit else found)
    ]
    more = [f"  ... and {len(found) - len(rows)} more; --limit 0 shows all"] if len(rows) < len(found) else []
    return ["", f"{title}: {len(found)} differ", *(f"  {line}" for line in table(head, rows).split("\n")), *more]
