"""
The score of a partial program: its cost plus an estimate of the remaining cost that is never too high.

    score(Q) = cost(Q) + ecost(Q),   ecost(Q) <= cost(Q_c) - cost(Q)  for every complete Q_c that starts with Q    (4.3)

HAP's `ecost` is the remaining compute, at infinite bandwidth. Here it is the sum of the minima of all remaining nodes
and edges, which includes that compute. Dual ascent first moves costs between nodes and edges so that the minima become
large; the total of every assignment stays the same (`dual_ascent.py`). A decision then adds its reduced cost to the
score, which is never negative.

Source: HAP 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..dual_ascent import DualAscent
from ..problem import Costs, Infeasible
from ..reduction import Graph, drop_dominated

SWEEPS = 200
"""The maximum number of sweeps of dual ascent; it ends when the bound no longer rises."""

ROUNDING = 1e-14
"""Reduced costs below this fraction of the bound count as zero, so that rounding does not order equal programs."""


@dataclass(frozen=True)
class Scores:
    """
    The reduced costs of a graph, which decisions add to the score of the empty program.

    Args:
        start: score of the empty program.
        unary: reduced costs of the states of each node.
        tables: reduced costs of the pairs of states of two neighbours, both ways.
        looks_ahead: whether a decision is charged at once for the minimum over the states of an undecided neighbour.
        least: minima that were subtracted from the costs of nodes and of pairs; they add up to `start`.
        moved: costs that the edge between a node and a neighbour gave to each state of the node.
    """

    start: float
    unary: Mapping[int, Costs]
    tables: Mapping[tuple[int, int], Costs]
    looks_ahead: bool
    least: Mapping[tuple[int, ...], float]
    moved: Mapping[tuple[int, int], Costs]

    def ahead(self, node: int, neighbour: int) -> Costs:
        """Return the minimum reduced cost of an edge for each state of a node, over the states of the neighbour."""
        return self.tables[node, neighbour].min(axis=1)


def drop_states(graph: Graph, without: frozenset[str]) -> int:
    """
    Drop dominated states, or only forbidden states if the part `states` is off, and return their number.

    Raises Infeasible if a node has no state left.
    """
    before = graph.total_states()
    if "states" in without:
        _drop_forbidden(graph)
    else:
        drop_dominated(graph, graph.unary)
    return before - graph.total_states()


def scores_of(graph: Graph, without: frozenset[str]) -> Scores:
    """Return the reduced costs of a graph; forbidden states must have been dropped."""
    unary = {node: graph.store[handle].copy() for node, handle in graph.unary.items()}
    tables = {(u, v): graph.store[graph.adjacency[u][v]].copy() for u in unary for v in graph.adjacency[u] if u < v}
    moved = {} if without & {"bound", "ascent"} else _messages(graph)
    for (node, neighbour), message in moved.items():
        unary[node] += message
        if node < neighbour:
            tables[node, neighbour] -= message[:, None]
        else:
            tables[neighbour, node] -= message
    looks_ahead = "bound" not in without
    least = _take_minima(unary, tables) if looks_ahead else dict.fromkeys([*((node,) for node in unary), *tables], 0.0)
    both = tables | {(v, u): table.T for (u, v), table in tables.items()}
    return Scores(sum(least.values()), unary, both, looks_ahead, least, moved)


def _messages(graph: Graph) -> dict[tuple[int, int], Costs]:
    """Return the costs that edges give to nodes after dual ascent, by node and neighbour."""
    messages: dict[tuple[int, int], Costs] = {}
    for component in graph.components():
        if len(component) > 1:
            part = graph.part(component)
            ascent = DualAscent(part)
            ascent.sweep(SWEEPS)
            messages |= {(n, other): ascent.message(n, other) for n in component for other in part.adjacency[n]}
    return messages


def _take_minima(unary: Mapping[int, Costs], tables: Mapping[tuple[int, int], Costs]) -> dict[tuple[int, ...], float]:
    """Subtract the minimum of each array from it, and return the minima."""
    arrays: dict[tuple[int, ...], Costs] = {**{(node,): costs for node, costs in unary.items()}, **tables}
    least = {key: float(costs.min()) for key, costs in arrays.items()}
    zero = ROUNDING * abs(sum(least.values()))
    for key, costs in arrays.items():
        costs -= least[key]
        costs[costs < zero] = 0.0
    return least


def _drop_forbidden(graph: Graph) -> None:
    """Drop all states that are forbidden, by themselves or by every state of a neighbour."""
    shrinks = True
    while shrinks:
        kept: dict[int, np.ndarray] = {}
        for node, handle in graph.unary.items():
            possible = np.isfinite(graph.store[handle])
            for table in graph.adjacency[node].values():
                possible &= np.isfinite(graph.store[table]).any(axis=1)
            if not possible.any():
                raise Infeasible((node, *sorted(graph.adjacency[node])), f"node {node} has no state that is allowed")
            if not possible.all():
                kept[node] = np.flatnonzero(possible)
        graph.keep({node: graph.store.intern(rows) for node, rows in kept.items()})
        shrinks = bool(kept)
