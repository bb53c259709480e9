"""Sort plugins by their declarations: the order is the same on every machine, whatever the input order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar


class Placed(Protocol):
    """What can be put in order: it says before and after whom it comes, by any of their ``names``."""

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]]
    after: ClassVar[tuple[str, ...]]

    @classmethod
    def names(cls) -> frozenset[str]:
        """Every name that means it."""


P = TypeVar("P", bound=Placed)
Edge = tuple[int, int]
"""The first runs before the second; both are indices of nodes."""


class Reason(NamedTuple):
    """Why one plugin runs before another."""

    text: str
    direct: bool
    """Whether one of the two names the other; else it follows from the places of others."""


class OrderError(Exception):
    """The declared order of plugins is contradictory."""


class Order(Generic[P]):
    """Plugins sorted by ``before`` and ``after``, and by name where these leave a choice.

    Several of one name keep the order in which they are given. A name that no plugin has is ignored.

    Args:
        plugins: the live ones.
        absent: others whose declarations count as well, so that coming after one of them means coming after whatever that
            one comes after. Where they contradict the rest, the last of them that has a part in it is passed over.

    Raises:
        OrderError: if the declarations of the live ones form a cycle; the message has each edge and who declared it.
    """

    def __init__(self, plugins: Iterable[P], absent: Iterable[type[Placed]] = ()) -> None:
        nodes = sorted(plugins, key=lambda plugin: plugin.name)
        self._live = len(nodes)
        names = {node.name for node in nodes}
        others = [other for other in absent if other.name not in names]
        self._nodes: list[Placed | type[Placed]] = [*nodes, *others]
        self.passed_over: dict[str, str] = {}
        """The absent plugins whose declarations are ignored, each with the cycle that they are part of."""
        edges = self._acyclic(_edges(self._nodes))
        self._edges = edges
        self._after: dict[int, list[int]] = {}
        for first, second in edges:
            self._after.setdefault(first, []).append(second)
        self._ways: dict[int, dict[int, tuple[int, ...]]] = {}
        self.plugins = [nodes[index] for index in self._sorted()]
        """The live ones, in order."""

    def passed_over_lines(self) -> list[str]:
        """What is said of each plugin in ``passed_over``."""
        return [
            f"plugin {name!r} is not live and its before and after are ignored, since they contradict the others': {cycle}"
            for name, cycle in self.passed_over.items()
        ]

    def _acyclic(self, edges: dict[Edge, str]) -> dict[Edge, str]:
        """``edges`` without those of absent plugins that contradict the rest."""
        while (cycle := _cycle(len(self._nodes), edges)) is not None:
            text = self._described(cycle, edges)
            if (last := max(cycle)) < self._live:
                raise OrderError(f"the plugins ask for an order that cannot be: {text}\nTake one of these away.")
            self.passed_over[self._nodes[last].name] = text
            edges = {edge: reason for edge, reason in edges.items() if last not in edge}
        return edges

    def why(self, first: str, second: str) -> Reason | None:
        """Why plugin ``first`` runs before plugin ``second``; None where no declaration says so."""
        ways = [
            way
            for index in range(self._live)
            if self._nodes[index].name == first
            for end, way in self._ways_from(index).items()
            if self._nodes[end].name == second and end < self._live
        ]
        if not ways:
            return None
        way = min(ways, key=len)
        said = ", ".join(self._edges[edge] for edge in reversed(list(pairwise(way))))
        absent = ", ".join(self._nodes[node].name for node in reversed(way) if node >= self._live)
        return Reason(f"{said}; not live: {absent}" if absent else said, direct=len(way) == 2)

    def _ways_from(self, start: int) -> dict[int, tuple[int, ...]]:
        """How each plugin behind ``start`` comes to be there: through as few absent ones as can be, in as few steps."""
        if start not in self._ways:
            ways = self._ways[start] = {}
            ahead: list[tuple[int, int, tuple[int, ...]]] = [(0, 1, (start,))]
            while ahead:
                absent, length, way = heapq.heappop(ahead)
                if way[-1] not in ways:
                    ways[way[-1]] = way
                    for step in self._after.get(way[-1], ()):
                        heapq.heappush(ahead, (absent + (step >= self._live), length + 1, (*way, step)))
            del ways[start]
        return self._ways[start]

    def _between_live(self) -> Iterator[Edge]:
        """Which live plugin comes before which, also through absent ones."""
        for start in range(self._live):
            ahead, seen = [start], {start}
            for node in ahead:
                for step in self._after.get(node, ()):
                    if step not in seen:
                        seen.add(step)
                        if step < self._live:
                            yield start, step
                        else:
                            ahead.append(step)

    def _sorted(self) -> list[int]:
        sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(self._live), ()))
        for first, second in self._between_live():
            sorter.add(second, first)
        sorter.prepare()
        ready: list[tuple[str, int]] = []
        result = []
        while sorter.is_active():
            for node in sorter.get_ready():
                heapq.heappush(ready, (self._nodes[node].name, node))
            _, node = heapq.heappop(ready)
            result.append(node)
            sorter.done(node)
        return result

    def _described(self, cycle: Sequence[int], edges: Mapping[Edge, str]) -> str:
        name = [node.name for node in self._nodes]
        chain = " -> ".join(name[node] for node in cycle)
        lines = [f"  {name[a]} runs before {name[b]}: {edges[a, b]}" for a, b in pairwise(cycle)]
        return "\n".join([chain, *lines])


def in_order(plugins: Iterable[P], absent: Iterable[type[Placed]] = ()) -> list[P]:
    """Sort ``plugins`` as :class:`Order` does.

    Raises:
        OrderError: if the declarations form a cycle; the message has each edge and who declared it.
    """
    return Order(plugins, absent).plugins


def _cycle(count: int, edges: Mapping[Edge, str]) -> list[int] | None:
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(count), ()))
    for first, second in edges:
        sorter.add(second, first)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def _edges(nodes: Sequence[Placed | type[Placed]]) -> dict[Edge, str]:
    edges: dict[Edge, str] = {}
    named: dict[str, list[int]] = {}
    twins: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if node.name in twins:
            edges[twins[node.name], index] = f"two {node.name!r} keep the order in which they are listed"
        twins[node.name] = index
        for name in node.names():
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
