"""
A lower bound for a pairwise model, and what each state costs at least above it.

Costs are moved between nodes and edges without changing any assignment's total: an edge (u, v) hands the
vector `m_uv[y]` to node v and keeps `table[x, y] - m_uv[y] - m_vu[x]`. The sum of all minima then bounds the
optimum from below. A sweep visits the nodes forward and backward; each takes from its edges towards visited
nodes all they can give and spreads its own costs over its edges to nodes yet unvisited, which never lowers
the bound.

Nodes of equal rank are not adjacent and are visited together, as stacked arrays: equal nodes of equal layers
share a rank, so that a sweep takes as many steps as a layer has nodes. Any order gives valid bounds.

So does any start. The messages of a larger graph are one for what pruning left of it. The messages of a
*fold*, in which one node stands for all those whose surroundings look alike far enough (the middle layers of
many), are one for the whole; most of the ascent then happens on a few layers.

Source: sequential tree-reweighted message passing, Kolmogorov (2006), in the form of "A new look at
reweighted message passing" (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .messages import Family, Messages, Seen
from .problem import Costs, States
from .reduction import Graph
from .tables import Handle

FOLD = 4
"""A fold has at most one node per this many of the graph."""


class DualAscent:
    """
    The messages of a connected graph without dead states, improved sweep by sweep.

    `start` is the ascent of a graph that this one was pruned from.
    """

    def __init__(self, graph: Graph, start: DualAscent | None = None) -> None:
        self._graph = graph
        self._families = _families(graph)
        slots = {
            (node, other): slot
            for family in self._families
            for node, *others in family.members
            for slot, other in enumerate(others)
        }
        self._messages = Messages(graph, self._families, slots, {node: node for node in graph.unary})
        self._seen: list[Seen] = []
        self._base = -np.inf
        self.bound = -np.inf
        """No assignment costs less."""
        if start is not None:
            self._inherit(start)

    def sweep(self, times: int = 1) -> None:
        """Visit all nodes forward and backward, `times` over."""
        for _ in range(times):
            self._base = self._messages.forward()
            self.bound, self._seen = self._messages.backward()

    def floors(self) -> dict[int, Costs]:
        """
        Return for each node what any assignment costs at least that has it in a given state; after a sweep.

        When a node is visited all that its edges can give is with the node. So its costs above their minimum
        come on top of the bound of that moment, which is no lower than the one the previous pass ended with.
        """
        return {
            node: floors
            for nodes, costs in self._seen
            for node, floors in zip(nodes, (costs - costs.min(axis=0) + self._base).T, strict=True)
        }

    def sweep_folded(self, times: int) -> None:
        """
        Start from the messages of a fold of the graph, where there is one.

        It takes `times` sweeps, or fewer if they stop improving what would be its bound.
        """
        stands_for = _fold(self._families)
        if not stands_for:
            return
        members = ([m for m in family.members if stands_for[m[0]] == m[0]] for family in self._families)
        families = [
            replace(family, members=tuple(kept))
            for family, kept in zip(self._families, members, strict=True)
            if kept
        ]
        folded = Messages(self._graph, families, self._messages.slots, stands_for)
        reached = -np.inf
        for _ in range(times):
            folded.forward()
            before, (reached, _) = reached, folded.backward()
            if reached <= before:
                break
        for node, place in self._messages.places.items():
            self._messages.flat[place] = folded.flat[folded.places[stands_for[node]]]

    def _inherit(self, start: DualAscent) -> None:
        """Take over the messages of `start` along the edges that are left, for the states that are."""
        graph, source, target = self._graph, start._messages, self._messages
        known: dict[tuple[Handle, Handle], States] = {}
        for node, places in target.places.items():
            key = before, now = start._graph.states[node], graph.states[node]
            if key not in known:
                known[key] = np.searchsorted(graph.store[before], graph.store[now])
            edges = [(node, other) for other in graph.adjacency[node] if (node, other) in source.slots]
            old, new = [source.slots[edge] for edge in edges], [target.slots[edge] for edge in edges]
            target.flat[places[new]] = source.flat[source.places[node][old][:, known[key]]]


def _fold(families: Sequence[Family]) -> dict[int, int]:
    """
    Return for each node the one that stands for it in a fold; nothing where there is no fold.

    Nodes are classed by their surroundings, farther and farther, as long as the classes are few enough. The
    middle node of a class stands for it.
    """
    members = [member for family in families for member in family.members]
    nodes = np.array([node for node, *_ in members])
    position = {node: number for number, node in enumerate(nodes.tolist())}
    around = np.full((len(members), max(map(len, members))), len(members))
    for number, member in enumerate(members):
        around[number, : len(member)] = [position[node] for node in member]
    family = np.repeat(np.arange(len(families)), [len(family.members) for family in families])
    mixers = np.random.default_rng(0).integers(2**63, size=around.shape[1])
    classes, finer, count = family, family, 0
    while count < finer.max() + 1 <= len(members) // FOLD:
        classes, count = finer, int(finer.max()) + 1
        mixed = np.append(classes, -1)[around] @ mixers >> 1
        finer = np.unique(mixed - mixed % len(families) + family, return_inverse=True)[1]
    if not count:
        return {}
    order = np.lexsort((nodes, classes))
    first = np.searchsorted(classes[order], np.arange(count + 1))
    middle = nodes[order[(first[:-1] + first[1:]) // 2]]
    return dict(zip(nodes.tolist(), middle[classes].tolist(), strict=True))


_Slot = tuple[bool, Handle]
"""An edge of a node: whether the neighbour comes later in the order, and the table from it to the node."""


def _families(graph: Graph) -> list[Family]:
    """Return the nodes by rank, number of states and tables, in order of rank."""
    ranks = _ranks(graph)
    members: dict[tuple[int, int, tuple[_Slot, ...]], list[tuple[int, ...]]] = {}
    for node in graph.unary:
        incident = sorted(
            (ranks[other] > ranks[node], graph.adjacency[other][node], ranks[other], other)
            for other in graph.adjacency[node]
        )
        slots = tuple((later, table) for later, table, _, _ in incident)
        key = (ranks[node], graph.size(node), slots)
        members.setdefault(key, []).append((node, *(other for *_, other in incident)))
    ordered = sorted(members.items(), key=lambda item: (item[0][0], item[1][0]))
    return [
        Family(sum(not later for later, _ in slots), tuple(table for _, table in slots), tuple(nodes))
        for (_, _, slots), nodes in ordered
    ]


def _ranks(graph: Graph) -> dict[int, int]:
    """
    Return an order on the nodes in which no two adjacent nodes are equal.

    Nodes are classed by their costs and tables, classes ordered by first node, and a class whose nodes touch
    one another is split.
    """
    classes: dict[tuple[Handle, ...], list[int]] = {}
    for node in sorted(graph.unary):
        key = (graph.unary[node], *sorted(graph.adjacency[node].values()))
        classes.setdefault(key, []).append(node)
    ranks: dict[int, int] = {}
    first = 0
    for nodes in classes.values():
        for node in nodes:
            taken = {ranks[other] for other in graph.adjacency[node] if other in ranks}
            ranks[node] = next(rank for rank in range(first, first + len(nodes)) if rank not in taken)
        first = max(ranks[node] for node in nodes) + 1
    return ranks
