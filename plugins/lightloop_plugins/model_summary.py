"""Print a summary of the module before training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightloop import Loop, Plugin, hookimpl, option
from lightloop.toolkit import warn

HEAD = ("name", "type", "parameters", "trainable", "in", "out")


class ModelSummary(Plugin):
    """Print a table of the parts of the module, once, on the main rank, to ``sys.stderr``.

    Where the module has an ``example_input_array`` (one input, a tuple of them, or a mapping of keywords), it goes
    forward once, without gradients, to learn the sizes that go into each part and come out of it.
    """

    name = "model_summary"
    tags = ("watches",)
    after = ("accelerator", "strategy")
    before = ("progress", "validation")
    default = True

    depth: Literal["top", "full"] | int | None = option(
        "top",
        "Depth of the summary: 'top' is 1, 'full' is everything; None and 0 print nothing.",
        flag="weights_summary",
        switch=True,
        aliases=("max_depth",),
    )

    def validate(self) -> None:
        if isinstance(self.depth, int) and self.depth < -1:
            raise self.invalid("depth", "'top', 'full', a whole number from 1, or None")

    @hookimpl
    def before_fit(self, loop: Loop) -> None:
        if not loop.world.is_main:
            return
        depth = -1 if self.depth == "full" else self.depth if isinstance(self.depth, int) else 1
        print(
            summarize(loop.module, depth, lambda batch: loop.hook.move_batch(loop=loop, batch=batch)), file=sys.stderr
        )


def summarize(module: nn.Module, depth: int = 1, move: Callable[[Any], Any] = lambda batch: batch) -> str:
    """The table: each part down to ``depth`` (-1: all of them), and the sums below it.

    Args:
        module: what to look at.
        depth: how many dots a part's name may have, plus one.
        move: brings ``module.example_input_array`` to the module's device.
    """
    parts = {
        name: part for name, part in module.named_modules() if name and depth in (-1, *range(name.count(".") + 1, 99))
    }
    sizes = _sizes(module, parts, move)
    rows = []
    for name, part in parts.items():
        every, trained = count(part)
        rows.append((name, type(part).__name__, *map(short, (every, trained)), *sizes.get(name, ("", ""))))
    columns = HEAD if sizes else HEAD[:4]
    table = [columns, *(row[: len(columns)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    every, trained = count(module)
    size = sum(p.numel() * p.element_size() for p in module.parameters() if not is_lazy(p)) / 1e6
    total = f"{type(module).__name__}: {short(every)} parameters ({size:.3g} MB), {short(trained)} trainable"
    return "\n".join([*lines, total] if rows else [total])


def count(module: nn.Module) -> tuple[int, int]:
    """How many numbers the parameters of ``module`` have, and how many of these are trained; shared ones count once."""
    known = [parameter for parameter in module.parameters() if not is_lazy(parameter)]
    return sum(p.numel() for p in known), sum(p.numel() for p in known if p.requires_grad)


def short(number: int) -> str:
    """1234567 as ``1.23 M``."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _sizes(module: nn.Module, parts: Mapping[str, nn.Module], move: Callable[[Any], Any]) -> dict[str, tuple[str, str]]:
    example = getattr(module, "example_input_array", None)
    if example is None:
        return {}
    sizes: dict[str, tuple[str, str]] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda part, given, output: sizes.update({name: (_size(given), _size(output))})

    handles = [part.register_forward_hook(note(name)) for name, part in parts.items()]
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            example = move(example)
            if isinstance(example, Mapping):
                module(**example)
            else:
                module(*example) if isinstance(example, tuple) else module(example)
    except Exception as error:
        warn(f"example_input_array does not go through {type(module).__name__}: {error}")
    finally:
        for handle in handles:
            handle.remove()
        for part, training in modes.items():
            part.training = training
    return sizes


def _size(value: Any) -> str:
    if isinstance(value, Tensor):
        return "×".join(map(str, value.shape)) or "scalar"
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return _size(value[0]) if len(value) == 1 else f"({', '.join(map(_size, value))})"
    return type(value).__name__
