"""
A lower bound for a pairwise model, and what each state costs at least above it.

Costs are moved between nodes and edges without changing any assignment's total: an edge (u, v) hands the
vector `m_uv[y]` to node v and keeps `table[x, y] - m_uv[y] - m_vu[x]`. The sum of all minima then bounds the
optimum from below. A sweep visits the nodes forward and backward; each takes from its edges towards visited
nodes all they can give and spreads its own costs over its edges to nodes yet unvisited, which never lowers
the bound.

Nodes of equal rank are not adjacent and are visited together, as stacked arrays: equal nodes of equal layers
share a rank, so that a sweep takes as many steps as a layer has nodes. Any order gives valid bounds.

Source: sequential tree-reweighted message passing, Kolmogorov (2006), in the form of "A new look at
reweighted message passing" (2015).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .problem import Costs
from .reduction import Graph
from .tables import Handle

Edges = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Pull:
    """The same edge of every node of a group: `table` from the neighbour (rows) to the node (columns)."""

    table: Costs
    inward: Edges
    outward: Edges


@dataclass(frozen=True, slots=True)
class _Direction:
    """What a group of nodes does in one direction of a sweep."""

    pulls: tuple[_Pull, ...]
    push: Edges
    """Messages into each node from nodes yet unvisited; shape (nodes, neighbours ahead)."""


@dataclass(frozen=True, slots=True)
class _Group:
    """
    Nodes visited together: their costs (nodes, states) and the messages into them (nodes, neighbours).

    Each hands `share` of its costs to every edge ahead.
    """

    nodes: tuple[int, ...]
    unary: Costs
    inward: Edges
    share: float
    forward: _Direction
    backward: _Direction


class DualAscent:
    """The messages of a connected graph without dead states, improved sweep by sweep."""

    def __init__(self, graph: Graph) -> None:
        self._edge_ids = {
            (u, v): number
            for number, (u, v) in enumerate((u, v) for u, tables in graph.adjacency.items() for v in tables)
        }
        self._groups = _groups(graph, self._edge_ids)
        self._messages = np.zeros((len(self._edge_ids), max(map(graph.size, graph.unary))))
        self._excess: list[Costs] = []
        self._base = -np.inf
        self.bound = -np.inf
        """No assignment costs less."""

    def sweep(self, times: int = 1) -> None:
        """Visit all nodes forward and backward, `times` over."""
        for _ in range(times):
            self._base = self._visit(self._groups, backward=False, excess=None)
            self._excess = []
            self.bound = self._visit(self._groups[::-1], backward=True, excess=self._excess)

    def floors(self) -> dict[int, Costs]:
        """
        Return for each node what any assignment costs at least that has it in a given state; after a sweep.

        When a node is visited all that its edges can give is with the node. So its costs above their minimum
        come on top of the bound of that moment, which is no lower than the one the previous pass ended with.
        """
        return {
            node: row + self._base
            for group, excess in zip(self._groups[::-1], self._excess, strict=True)
            for node, row in zip(group.nodes, excess, strict=True)
        }

    def _visit(self, groups: Sequence[_Group], *, backward: bool, excess: list[Costs] | None) -> float:
        """Visit `groups` in order and return the bound; collect each group's costs above their minimum."""
        messages, bound = self._messages, 0.0
        for group in groups:
            direction = group.backward if backward else group.forward
            states = group.unary.shape[1]
            for pull in direction.pulls:
                rows = messages[pull.outward, : pull.table.shape[0]]
                messages[pull.inward, :states] = (pull.table - rows[:, :, None]).min(axis=1)
            costs = group.unary + messages[group.inward, :states].sum(axis=1)
            minima = costs.min(axis=1)
            ahead = direction.push.shape[1]
            bound += (1 - group.share * ahead) * float(minima.sum())
            if ahead:
                messages[direction.push, :states] -= group.share * costs[:, None, :]
            if excess is not None:
                excess.append(costs - minima[:, None])
        return bound


_Slot = tuple[bool, Handle]
"""An edge of a node: whether the neighbour comes later in the order, and the table from it to the node."""


def _groups(graph: Graph, edge_ids: Mapping[tuple[int, int], int]) -> list[_Group]:
    """Return the nodes in groups of equal rank, number of states and tables, in order of rank."""
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
    return [_group(graph, slots, nodes, edge_ids) for (_, _, slots), nodes in ordered]


def _group(
    graph: Graph,
    slots: Sequence[_Slot],
    members: Sequence[tuple[int, ...]],
    edge_ids: Mapping[tuple[int, int], int],
) -> _Group:
    """Return the group of `members`, each a node and then its neighbours in the order of `slots`."""
    inward = np.array([[edge_ids[other, node] for other in others] for node, *others in members])
    outward = np.array([[edge_ids[node, other] for other in others] for node, *others in members])
    pulls = [
        _Pull(graph.store[table], inward[:, slot], outward[:, slot]) for slot, (_, table) in enumerate(slots)
    ]
    behind = [slot for slot, (later, _) in enumerate(slots) if not later]
    ahead = [slot for slot, (later, _) in enumerate(slots) if later]
    return _Group(
        tuple(node for node, *_ in members),
        np.stack([graph.store[graph.unary[node]] for node, *_ in members]),
        inward,
        1 / max(len(behind), len(ahead)),
        _Direction(tuple(pulls[slot] for slot in behind), inward[:, ahead]),
        _Direction(tuple(pulls[slot] for slot in ahead), inward[:, behind]),
    )


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
