"""
Bucket elimination: exact, with time and memory exponential in the width of the graph.

The elimination of a node adds up all tables that contain the node and minimises over its states; the result is a table
over all its neighbours. `plan` chooses the order (smallest joint table first) by running the elimination on names
alone, so the cost is known before any array is computed; equal computations get equal names and count once.

Source: Dechter, "Bucket elimination: a unifying framework for reasoning" (1999).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from heapq import heapify, heappop, heappush
from itertools import count
from math import prod

import numpy as np

from .problem import Costs
from .reduction import Graph
from .tables import Handle

Axes = tuple[int, ...]

MAX_BROADCAST = 1 << 18
"""Joint tables of at most this many entries are computed at once, larger ones state by state."""


@dataclass(frozen=True, slots=True)
class TableReduction:
    """The computation of a table: the minimum, over dim `axis` of `shape`, of the sum of tables on ascending dims."""

    shape: tuple[int, ...]
    axis: int
    operands: tuple[tuple[int, Axes], ...]


@dataclass(frozen=True, slots=True)
class EliminationStep:
    """The elimination of one node: its tables by name and scope (ascending nodes, one per dim)."""

    node: int
    operands: tuple[tuple[int, Axes], ...]


@dataclass
class EliminationPlan:
    """
    An elimination order and its cost.

    A table has a name: from 0 upwards `given[name]`, below 0 `computations[-name - 1]`. `entries` is the total size of
    all result tables, `work` the sum over joint tables of their size times number of operands; equal computations
    count once.
    """

    given: list[Handle] = field(default_factory=list[Handle])
    computations: list[TableReduction] = field(default_factory=list[TableReduction])
    steps: list[EliminationStep] = field(default_factory=list[EliminationStep])
    results: list[int] = field(default_factory=list[int])
    """Tables without nodes: the costs of the components."""
    entries: int = 0
    work: int = 0


def plan(graph: Graph, max_entries: int, max_work: int) -> EliminationPlan | None:
    """Return a plan to eliminate all of `graph`, or None if it would exceed `max_entries` or `max_work`."""
    planner = _EliminationPlanner(graph)
    while planner.queue:
        node = planner.next_node()
        if node is not None:
            planner.eliminate(node)
            if planner.plan.entries > max_entries or planner.plan.work > max_work:
                return None
    return planner.plan


def execute(plan: EliminationPlan, graph: Graph) -> tuple[float, dict[int, int]]:
    """Return the optimum of `graph` and the original state of each node; inf and an empty dict if it is infeasible."""
    tables: dict[int, Costs] = {name: graph.store[handle] for name, handle in enumerate(plan.given)}
    for number, computation in enumerate(plan.computations):
        operands = [(tables[name], axes) for name, axes in computation.operands]
        tables[-number - 1] = _minimise(computation, operands)
    graph.store.computed["bucket"] += len(plan.computations)
    cost = sum(float(tables[name]) for name in plan.results)
    if cost == np.inf:
        return cost, {}
    positions: dict[int, int] = {}
    for step in reversed(plan.steps):
        costs = np.zeros(graph.size(step.node))
        for name, scope in step.operands:
            costs += tables[name][tuple(positions.get(member, slice(None)) for member in scope)]
        positions[step.node] = int(costs.argmin())
    states = {node: graph.store[graph.states[node]] for node in positions}
    return cost, {node: int(states[node][position]) for node, position in positions.items()}


def _minimise(computation: TableReduction, operands: Sequence[tuple[Costs, Axes]]) -> Costs:
    """Return the minimum, over the dim of the eliminated node, of the sum of `operands`."""
    shape, axis = computation.shape, computation.axis
    aligned = [
        np.moveaxis(table.reshape([size if dim in axes else 1 for dim, size in enumerate(shape)]), axis, 0)
        for table, axes in sorted(operands, key=lambda operand: operand[0].size)
    ]
    if prod(shape) <= MAX_BROADCAST:
        return np.asarray(reduce(np.add, aligned).min(axis=0))
    best = np.full(shape[:axis] + shape[axis + 1 :], np.inf)
    for state in range(shape[axis]):
        slices = (table[state] if len(table) > 1 else table[0] for table in aligned)
        np.minimum(best, reduce(np.add, slices), out=best)
    return best


class _EliminationPlanner:
    """Runs the elimination on names, for `plan`."""

    def __init__(self, graph: Graph) -> None:
        self.plan = EliminationPlan()
        self.sizes = {node: graph.size(node) for node in graph.unary}
        self.neighbours = {node: set(tables) for node, tables in graph.adjacency.items()}
        self.tables: dict[int, dict[int, tuple[int, Axes]]] = {node: {} for node in graph.unary}
        self.serials = count()
        self.touches = dict.fromkeys(graph.unary, 0)
        self.names: dict[Handle | TableReduction, int] = {}
        for node, unary in graph.unary.items():
            self._place(self._given(unary), (node,))
            for neighbour, table in graph.adjacency[node].items():
                if node < neighbour:
                    self._place(self._given(table), (node, neighbour))
        self.queue = [(self._joint(node), 0, node) for node in graph.unary]
        heapify(self.queue)

    def next_node(self) -> int | None:
        """
        Pop the node with the smallest joint table; return None if the queue entry is out of date.

        Among equal nodes, pop the one whose surroundings changed least. So alternate nodes of a chain go first, and a
        chain of equal nodes takes a logarithmic number of computations.
        """
        joint, touches, node = heappop(self.queue)
        current = node in self.neighbours and touches == self.touches[node]
        return node if current and joint == self._joint(node) else None

    def eliminate(self, node: int) -> None:
        """Record the elimination of `node`, and replace its tables by one table over its neighbours."""
        around = self.neighbours.pop(node)
        operands = self._take(node)
        self.plan.steps.append(EliminationStep(node, operands))
        scope = sorted({node, *around})
        shape = tuple(self.sizes[member] for member in scope)
        along = sorted((name, tuple(map(scope.index, members))) for name, members in operands)
        result = self._compute(TableReduction(shape, scope.index(node), tuple(along)))
        if around:
            self._place(result, tuple(member for member in scope if member != node))
        else:
            self.plan.results.append(result)
        for member in around:
            self.neighbours[member] |= around
            self.neighbours[member] -= {node, member}
            self.touches[member] += 1
        for member in around:
            heappush(self.queue, (self._joint(member), self.touches[member], member))

    def _joint(self, node: int) -> int:
        return prod((self.sizes[other] for other in self.neighbours[node]), start=self.sizes[node])

    def _given(self, table: Handle) -> int:
        name = self.names.get(table)
        if name is None:
            name = self.names[table] = len(self.plan.given)
            self.plan.given.append(table)
        return name

    def _compute(self, computation: TableReduction) -> int:
        name = self.names.get(computation)
        if name is None:
            name = self.names[computation] = -len(self.plan.computations) - 1
            self.plan.computations.append(computation)
            joint = prod(computation.shape)
            self.plan.work += joint * len(computation.operands)
            self.plan.entries += joint // computation.shape[computation.axis]
        return name

    def _place(self, name: int, scope: Axes) -> None:
        serial = next(self.serials)
        for node in scope:
            self.tables[node][serial] = (name, scope)

    def _take(self, node: int) -> tuple[tuple[int, Axes], ...]:
        """Remove and return the tables of `node`."""
        taken = self.tables.pop(node)
        for serial, (_, scope) in taken.items():
            for member in scope:
                if member != node:
                    del self.tables[member][serial]
        return tuple(taken.values())
