"""``lightloop explain``."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from lightloop.cli.front import Parser, UsageError
from lightloop.cli.options import read_options
from lightloop.host.manager import OWN_ANSWER, Caller
from lightloop.trainer import Trainer, manager_of

Chains = Mapping[str, Sequence[Caller]]
ROW, LABEL, GAP, CHARACTER = 34, 190, 18, 7.2
"""Of the drawing, in pixels: height of a row, width of its label, gap between boxes, width of a character."""


def explain(arguments: list[str]) -> int:
    """Print who is called in each hook of a run, in which order, and why; the run's options follow: --max_epochs 3."""
    parser = Parser("explain", explain)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--mermaid", action="store_true", help="as a graph in the language of Mermaid")
    form.add_argument("--svg", action="store_true", help="as a drawing")
    parser.epilog = "Plugins and options as for lightloop fit: --config FILE, --plugins ema,-progress, --OPTION VALUE."
    said, rest = parser.parse_known_args(arguments)
    plugins, options = read_options(rest)
    try:
        trainer = Trainer(plugins, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    manager = manager_of(trainer)
    chains = manager.chains()
    print(mermaid(chains) if said.mermaid else svg(chains) if said.svg else manager.explain())
    return 0


def mermaid(chains: Chains) -> str:
    """A graph with a box for each hook, in which arrows go from one called plugin to the next."""
    lines = ["flowchart TB"]
    for hook, callers in chains.items():
        lines += [f"  subgraph {hook}", "    direction LR"]
        nodes = [f'{hook}_{number}["{_label(caller)}"]' for number, caller in enumerate(callers)]
        lines += [f"    {nodes[0]}", *(f"    {hook}_{number} --> {node}" for number, node in enumerate(nodes[1:]))]
        lines.append("  end")
    lines += [f"  {one} --> {other}" for one, other in zip(list(chains)[:-1], list(chains)[1:], strict=True)]
    return "\n".join(lines)


def svg(chains: Chains) -> str:
    """A row for each hook, with a box for each plugin that is called; a wrapper's is dashed."""
    drawn, width = [], 0.0
    for row, (hook, callers) in enumerate(chains.items()):
        x, y = float(LABEL), row * ROW + 6
        drawn.append(f'<text x="8" y="{y + 16}" font-weight="bold">{hook}</text>')
        for caller in callers:
            label, dash = _label(caller), ' stroke-dasharray="4 2"' if caller.wrapper else ""
            size = len(label) * CHARACTER + 14
            if x > LABEL:
                drawn.append(f'<path d="M{x - GAP:.0f} {y + 11}h{GAP}" stroke="#888"/>')
            drawn.append(
                f'<g><title>{html.escape(caller.reason)}</title><rect x="{x:.0f}" y="{y}" width="{size:.0f}" height="22" '
                f'rx="4" fill="#eef3fb" stroke="#4a6fa5"{dash}/><text x="{x + 7:.0f}" y="{y + 15}">{html.escape(label)}'
                "</text></g>"
            )
            x += size + GAP
        width = max(width, x)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{len(chains) * ROW + 8}"'
    return "\n".join([f'{head} font-family="monospace" font-size="12">', *drawn, "</svg>"])


def _label(caller: Caller) -> str:
    return f"{caller.key} after its yield" if caller.ends else caller.key or OWN_ANSWER
