"""
The optimisation problem of choosing a strategy: a discrete pairwise graphical model.

    minimise  sum_i unary_i[x_i]  +  sum_(u,v) table_uv[x_u, x_v]      over  x_i in {0, ..., n_i - 1}

A node is a decision (an op's signature, a value's working placement), a state is one of its alternatives, and an edge
is a cost that depends on two decisions (a resharding). `inf` forbids a state or a pair. `eliminate.py` solves any such
problem exactly.

Equal decisions of equal layers share their arrays. Two edges whose `table` is *the same object* are known to be equal
without a comparison, and results computed from one are looked up for the other. Neither the caller nor a solver may
write to the arrays of a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
States = NDArray[np.int64]

MAX_BRUTE_FORCE = 20_000_000


class Infeasible(ValueError):
    """No assignment has finite cost: `nodes` conflict, whatever the states of all other nodes."""

    def __init__(self, nodes: Iterable[int], reason: str) -> None:
        self.nodes = tuple(nodes)
        super().__init__(f"{reason} (nodes {', '.join(map(str, self.nodes))})")


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge with the joint costs `table[x_u, x_v]` of two decisions; shape (states of u, states of v)."""

    u: int
    v: int
    table: Costs


@dataclass(frozen=True)
class Problem:
    """
    A pairwise model: one cost vector per node, and any number of tables between pairs of nodes.

    Parallel edges add up. Costs are float64 in any unit; `inf` forbids a choice, nan is an error.
    """

    unary: tuple[Costs, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for an array of the wrong type or shape, a nan, a -inf, or an edge to a missing node."""
        checked: set[int] = set()
        for node, costs in enumerate(self.unary):
            if costs.ndim != 1 or not len(costs):
                raise ValueError(f"unary[{node}] has shape {costs.shape}; expected one cost per state, (n,) with n > 0")
            _check_costs(costs, f"unary[{node}]", checked)
        for position, (u, v, table) in enumerate((edge.u, edge.v, edge.table) for edge in self.edges):
            if not (0 <= u < len(self.unary) and 0 <= v < len(self.unary)):
                raise ValueError(f"edges[{position}] joins nodes {u} and {v}; there are {len(self.unary)} nodes")
            if u == v:
                raise ValueError(f"edges[{position}] joins node {u} to itself; add its diagonal to unary[{u}]")
            if table.shape != (len(self.unary[u]), len(self.unary[v])):
                expected = (len(self.unary[u]), len(self.unary[v]))
                raise ValueError(f"edges[{position}] ({u}, {v}) has a table of {table.shape}; expected {expected}")
            _check_costs(table, f"edges[{position}] ({u}, {v})", checked)

    def cost(self, assignment: Sequence[int] | States) -> float:
        """Return the total cost of `assignment` (one state per node); ValueError if it has the wrong length."""
        if len(assignment) != len(self.unary):
            raise ValueError(f"the assignment names {len(assignment)} states; the problem has {len(self.unary)} nodes")
        chosen = [int(state) for state in assignment]
        total = sum(float(costs[state]) for costs, state in zip(self.unary, chosen, strict=True))
        return total + sum(float(edge.table[chosen[edge.u], chosen[edge.v]]) for edge in self.edges)


def _check_costs(costs: Costs, name: str, checked: set[int]) -> None:
    """Raise ValueError unless `costs` is float64 without nan and -inf; each shared array is checked once."""
    if id(costs) in checked:
        return
    if costs.dtype != np.float64:
        raise ValueError(f"{name} has dtype {costs.dtype}; expected float64")
    if not (costs > -np.inf).all():
        raise ValueError(f"{name} holds nan or -inf; a cost is finite, or inf where the choice is forbidden")
    checked.add(id(costs))


@dataclass(frozen=True)
class Solution:
    """
    An assignment, its cost, and a lower bound on the cost of any assignment.

    If `lower_bound` equals `cost`, the assignment is optimal. `statistics` counts nodes and states after each step and
    distinct computations, and has the seconds of each step.
    """

    assignment: States
    cost: float
    lower_bound: float
    statistics: Mapping[str, int | float] = field(default_factory=dict[str, "int | float"])

    @property
    def is_optimal(self) -> bool:
        """Whether the lower bound reaches the cost."""
        return self.lower_bound >= self.cost


class TooManyError(ValueError):
    """A problem has too many assignments to try all of them."""


def brute_force(problem: Problem) -> Solution:
    """
    Try every assignment, and return the first among the cheapest.

    Raises Infeasible if no assignment has finite cost, TooManyError if there are more than `MAX_BRUTE_FORCE`.
    """
    sizes = [len(costs) for costs in problem.unary]
    if prod(sizes) > MAX_BRUTE_FORCE:
        shown = f"{float(prod(sizes)):.3g}" if prod(sizes) < 1e300 else "more than 1e300"
        raise TooManyError(f"{shown} assignments are too many to try; the limit is {MAX_BRUTE_FORCE}")
    later_edges: list[list[tuple[int, Costs]]] = [[] for _ in sizes]
    for edge in problem.edges:
        u, v, table = (edge.u, edge.v, edge.table) if edge.u < edge.v else (edge.v, edge.u, edge.table.T)
        later_edges[v].append((u, table))
    totals = np.zeros(1)
    for node, costs in enumerate(problem.unary):
        joint = totals[:, None] + costs
        for u, table in later_edges[node]:
            joint += table[np.arange(len(totals)) // prod(sizes[u + 1 : node]) % sizes[u]]
        totals = joint.ravel()
    best = int(totals.argmin())
    if totals[best] == np.inf:
        raise Infeasible(range(len(sizes)), "no assignment has finite cost")
    assignment = np.array([best // prod(sizes[node + 1 :]) % size for node, size in enumerate(sizes)], np.int64)
    cost = problem.cost(assignment)
    return Solution(assignment, cost, cost, {"assignments": len(totals)})
