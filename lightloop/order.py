"""Put plugins in the order that their declarations ask for: the same on every machine, whatever came first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import ClassVar, Protocol, TypeVar


class Placed(Protocol):
    """What can be put in order: it says before and after whom it comes, by any of the names that those are ``called``."""

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]]
    after: ClassVar[tuple[str, ...]]

    @classmethod
    def called(cls) -> frozenset[str]:
        """Every name that means it."""


P = TypeVar("P", bound=Placed)


class OrderError(Exception):
    """The declared places contradict one another."""


def in_order(plugins: Iterable[P]) -> list[P]:
    """Sort ``plugins`` by ``before`` and ``after``, and by name where these leave a choice.

    Several of one name keep the order in which they are given. Names that are not there are ignored.

    Raises:
        OrderError: if the declarations form a cycle; the message has each edge and who declared it.
    """
    nodes = sorted(plugins, key=lambda plugin: plugin.name)
    reasons = _edges(nodes)
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(nodes)), ()))
    for first, second in reasons:
        sorter.add(second, first)
    try:
        sorter.prepare()
    except CycleError as error:
        raise OrderError(_cycle(nodes, reasons, error.args[1])) from None
    ready: list[tuple[str, int]] = []
    result = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, (nodes[node].name, node))
        _, node = heapq.heappop(ready)
        result.append(nodes[node])
        sorter.done(node)
    return result


def places(plugins: Iterable[P]) -> dict[tuple[str, str], str]:
    """Which declaration puts one plugin before another: ``(first, second) -> reason``, by name."""
    nodes = sorted(plugins, key=lambda plugin: plugin.name)
    return {(nodes[a].name, nodes[b].name): reason for (a, b), reason in _edges(nodes).items()}


def _edges(nodes: Sequence[Placed]) -> dict[tuple[int, int], str]:
    edges: dict[tuple[int, int], str] = {}
    named: dict[str, list[int]] = {}
    twins: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if node.name in twins:
            edges[twins[node.name], index] = f"two {node.name!r} keep the order in which they are listed"
        twins[node.name] = index
        for name in node.called():
            named.setdefault(name, []).append(index)
    for index, node in enumerate(nodes):
        for name in node.before:
            edges |= {
                (index, other): f"{node.name} says before={name!r}" for other in named.get(name, ()) if other != index
            }
        for name in node.after:
            edges |= {
                (other, index): f"{node.name} says after={name!r}" for other in named.get(name, ()) if other != index
            }
    return edges


def _cycle(nodes: Sequence[Placed], reasons: dict[tuple[int, int], str], cycle: Sequence[int]) -> str:
    chain = " -> ".join(nodes[node].name for node in cycle)
    lines = [f"  {nodes[a].name} runs before {nodes[b].name}: {reasons[a, b]}" for a, b in pairwise(cycle)]
    return "\n".join([f"the plugins ask for an order that cannot be: {chain}", *lines, "Take one of these away."])
