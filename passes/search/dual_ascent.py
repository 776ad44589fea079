"""
A lower bound for a pairwise model, and the reduced cost of each state.

Costs are moved between nodes and edges without changing any assignment's total: an edge (u, v) gives the vector
`m_uv[y]` to node v and keeps `table[x, y] - m_uv[y] - m_vu[x]`. The sum of all minima then bounds the optimum from
below. A sweep visits the nodes forward and backward. Each node takes the maximal messages from its edges to visited
nodes and spreads its own costs over its edges to unvisited nodes, which never lowers the bound.

Nodes of equal rank are not adjacent and are visited together, as stacked arrays. Equal nodes of equal layers share a
rank, so a sweep takes as many steps as a layer has nodes. Any order gives valid bounds.

Any initial messages give valid bounds too, from a larger graph before pruning, or from a *leap*. Bounds often converge
slowly, with every sweep moving the messages by a similar amount, as information travels along a chain of layers. So
every third sweep starts a multiple of the last move ahead, and is undone if it does not raise the bound.

Source: sequential tree-reweighted message passing, Kolmogorov (2006), in the form of "A new look at
reweighted message passing" (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .messages import Messages, NodeFamily, Seen
from .problem import Costs, States
from .reduction import Graph
from .tables import Handle

CYCLE = 3
"""The number of sweeps per leap; one sweep settles after the leap, and one gives the direction of the next leap."""

STRIDES = (1.0, 64.0)
"""The range of a leap, in multiples of the last move; after longer leaps, rounding errors would exceed the costs."""

STILL = 1e-12
"""The bound has converged if a cycle raises it by less than this, relative to its size."""


@dataclass(frozen=True, slots=True)
class _Reached:
    """The bounds after a sweep and after its forward half, and the costs seen in the backward half."""

    bound: float = -np.inf
    base: float = -np.inf
    seen: Sequence[Seen] = ()


class DualAscent:
    """
    The messages of a connected graph without dominated states, improved sweep by sweep.

    `start` is the ascent of a graph from which this one was pruned.
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
        self._messages = Messages(graph, self._families, slots)
        self._reached = _Reached()
        self._before = self._messages.flat
        self._stride = 2.0
        self._sweeps = 0
        self._cycle_start = -np.inf
        if start is not None:
            self._inherit(start)

    @property
    def bound(self) -> float:
        """Return a lower bound on the cost of every assignment."""
        return self._reached.bound

    def sweep(self, times: int = 1) -> None:
        """Visit all nodes forward and backward, `times` times or until the bound stops rising."""
        for _ in range(times):
            self._sweeps += 1
            if self._sweeps % CYCLE:
                self._before = self._messages.flat.copy()
                self._reached = self._visit_all()
                continue
            self._leap()
            if self.bound - self._cycle_start <= STILL * abs(self.bound):
                break
            self._cycle_start = self.bound

    def _visit_all(self) -> _Reached:
        base = self._messages.forward()
        bound, seen = self._messages.backward()
        return _Reached(bound, base, seen)

    def _leap(self) -> None:
        """Sweep from a point farther along the last move; lengthen the next leap if it helps, else undo it."""
        flat = self._messages.flat
        after = flat.copy()
        flat += self._stride * (after - self._before)
        reached = self._visit_all()
        if reached.bound > self.bound:
            self._reached = reached
            self._stride = min(self._stride * 2, STRIDES[1])
        else:
            flat[:] = after
            self._stride = max(self._stride / 4, STRIDES[0])

    def floors(self) -> dict[int, Costs]:
        """
        Return, by node, lower bounds on the costs of assignments with each state of the node; call after a sweep.

        When a node is visited, it has taken the maximal messages of all its edges. So its costs above their minimum add
        to the bound at that moment, which is at least the final bound of the previous half sweep.
        """
        return {
            node: floors
            for nodes, costs in self._reached.seen
            for node, floors in zip(nodes, (costs - costs.min(axis=0) + self._reached.base).T, strict=True)
        }

    def message(self, node: int, neighbour: int) -> Costs:
        """
        Return the message from the edge to `neighbour` to the states of `node`.

        Adding all messages to nodes and subtracting them from edges leaves the cost of every assignment unchanged.
        """
        return self._messages.flat[self._messages.places[node][self._messages.slots[node, neighbour]]]

    def _inherit(self, start: DualAscent) -> None:
        """Take over the messages of `start` for the remaining edges and states."""
        graph, source, target = self._graph, start._messages, self._messages
        cache: dict[tuple[Handle, Handle], States] = {}
        for node, places in target.places.items():
            key = before, now = start._graph.states[node], graph.states[node]
            if key not in cache:
                cache[key] = np.searchsorted(graph.store[before], graph.store[now])
            edges = [(node, other) for other in graph.adjacency[node] if (node, other) in source.slots]
            old, new = [source.slots[edge] for edge in edges], [target.slots[edge] for edge in edges]
            target.flat[places[new]] = source.flat[source.places[node][old][:, cache[key]]]


_Slot = tuple[bool, Handle]
"""An edge of a node: whether the neighbour comes later in the order, and the table from neighbour to node."""


def _families(graph: Graph) -> list[NodeFamily]:
    """Group the nodes by rank, number of states and tables, in order of rank."""
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
        NodeFamily(sum(not later for later, _ in slots), tuple(table for _, table in slots), tuple(nodes))
        for (_, _, slots), nodes in ordered
    ]


def _ranks(graph: Graph) -> dict[int, int]:
    """
    Return ranks of the nodes such that no two adjacent nodes have equal ranks.

    Nodes form classes of equal costs and tables, in the order of their first nodes; a class with adjacent nodes is
    divided.
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
