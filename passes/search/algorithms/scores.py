"""
The score of a partial program: its cost, and an estimate of what is still to come that is never too high.

    score(Q) = cost(Q) + ecost(Q),   ecost(Q) <= cost(Q_c) - cost(Q)  for every complete Q_c that starts with Q    (4.3)

HAP takes for `ecost` the compute that remains, at infinite bandwidth. Here it is the least that each remaining node and
each remaining edge can cost, which contains that compute; and dual ascent first moves costs between nodes and edges,
without changing the total of any assignment, until these minima add up to as much as they can (`dual_ascent.py`).
What a decision adds to the score is then never negative: its reduced cost.

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
"""The most sweeps of dual ascent; it ends where the bound no longer rises."""

ROUNDING = 1e-14
"""A reduced cost below this part of the bound is zero, so that rounding does not order programs of equal score."""


@dataclass(frozen=True)
class Scores:
    """
    The reduced costs of a graph: what decisions add to the score of the empty program.

    Args:
        start: score of the empty program.
        unary: by node, what each of its states adds.
        tables: by pair of neighbours, both ways, what each pair of states adds.
        looks_ahead: whether a decision is charged at once for the least that an undecided neighbour can add to it.
        least: by node and by pair of neighbours, the minimum that was taken from their costs; they add up to `start`.
        moved: by node and neighbour, what their edge handed to each state of the node.
    """

    start: float
    unary: Mapping[int, Costs]
    tables: Mapping[tuple[int, int], Costs]
    looks_ahead: bool
    least: Mapping[tuple[int, ...], float]
    moved: Mapping[tuple[int, int], Costs]

    def ahead(self, node: int, neighbour: int) -> Costs:
        """Return the least that an undecided neighbour adds to each state of a node."""
        return self.tables[node, neighbour].min(axis=1)


def drop_states(graph: Graph, without: frozenset[str]) -> int:
    """
    Drop the states that no cheapest program needs, or, without `states`, those that none can have; return how many.

    Raises Infeasible where a node is left without a state.
    """
    before = graph.total_states()
    if "states" in without:
        _drop_forbidden(graph)
    else:
        drop_dominated(graph, graph.unary)
    return before - graph.total_states()


def scores_of(graph: Graph, without: frozenset[str]) -> Scores:
    """Return the reduced costs of a graph without states that are forbidden."""
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
    """Return, by node and neighbour, what their edge hands to the node after dual ascent."""
    messages: dict[tuple[int, int], Costs] = {}
    for component in graph.components():
        if len(component) > 1:
            part = graph.part(component)
            ascent = DualAscent(part)
            ascent.sweep(SWEEPS)
            messages |= {(n, other): ascent.message(n, other) for n in component for other in part.adjacency[n]}
    return messages


def _take_minima(unary: Mapping[int, Costs], tables: Mapping[tuple[int, int], Costs]) -> dict[tuple[int, ...], float]:
    """Take its minimum from each array, and return these."""
    arrays: dict[tuple[int, ...], Costs] = {**{(node,): costs for node, costs in unary.items()}, **tables}
    least = {key: float(costs.min()) for key, costs in arrays.items()}
    zero = ROUNDING * abs(sum(least.values()))
    for key, costs in arrays.items():
        costs -= least[key]
        costs[costs < zero] = 0.0
    return least


def _drop_forbidden(graph: Graph) -> None:
    """Drop the states that are forbidden, by themselves or by all states of a neighbour, until none is left."""
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
