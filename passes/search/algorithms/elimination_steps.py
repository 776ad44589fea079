"""The elimination order of the free nodes of a pairwise model, found without computing costs (see `completion.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from ..problem import Costs
from ..reduction import Graph
from ..tables import Handle

MAX_JOINT = 1 << 16
"""The maximum number of entries of a table; a node whose elimination needs a larger table is decided instead."""


@dataclass(frozen=True)
class FiniteModel:
    """
    The costs of a graph with a large finite number, `forbidden`, in place of infinity.

    An assignment is forbidden if it costs at least that number. A forbidden assignment costs less if fewer of its pairs
    are forbidden.
    """

    unary: Mapping[int, Costs]
    tables: Mapping[int, Mapping[int, Costs]]
    forbidden: float

    @classmethod
    def of(cls, graph: Graph) -> FiniteModel:
        """Return the model of a graph; shared arrays stay shared."""
        store = graph.store
        handles = [*graph.unary.values(), *(table for around in graph.adjacency.values() for table in around.values())]
        largest = {handle: _largest(store[handle]) for handle in set(handles)}
        forbidden = 1.0 + sum(largest[handle] for handle in handles)
        finite: dict[Handle, Costs] = {
            handle: np.where(np.isinf(store[handle]), forbidden, store[handle]) for handle in largest
        }
        return cls(
            {node: finite[handle] for node, handle in graph.unary.items()},
            {node: {other: finite[table] for other, table in near.items()} for node, near in graph.adjacency.items()},
            forbidden,
        )

    def size(self, node: int) -> int:
        """Return the number of states of a node."""
        return len(self.unary[node])


def _largest(costs: Costs) -> float:
    return float(np.abs(costs[np.isfinite(costs)]).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Elimination:
    """
    The elimination of one free node.

    Args:
        scope: free neighbours at the time of elimination, ascending.
        decided: decided neighbours, each with its table, which has a row per state of the neighbour.
        fixed: costs independent of decided nodes; shapes (1, states of the node, states of the scope or 1).
        messages: earlier eliminations, by number, whose message depends on the node: the node's dim in the message, and
            the shape of the message here without the first dim.
    """

    node: int
    scope: tuple[int, ...]
    decided: tuple[tuple[int, Costs], ...]
    fixed: tuple[Costs, ...]
    messages: tuple[tuple[int, int, tuple[int, ...]], ...]


def find_order(model: FiniteModel, free: set[int], spare: Collection[int]) -> tuple[list[int], int, int]:
    """
    Return the elimination order of the free nodes, the total number of entries of all tables, and of the largest table.

    Nodes of `spare` whose elimination is too expensive are left out.
    """
    near = {node: {other for other in model.tables[node] if other in free} for node in free}
    sizes = {node: model.size(node) for node in free}
    order: list[int] = []
    work, widest = 0, 1

    def joint(node: int) -> int:
        return prod((sizes[other] for other in near[node]), start=sizes[node])

    queue = [(joint(node), node) for node in sorted(free)]
    heapify(queue)
    while queue:
        entries, node = heappop(queue)
        if node not in near or entries != joint(node):
            continue
        decidable = [other for other in near if other in spare] if entries > MAX_JOINT else []
        if decidable:
            # The remaining nodes are closest to a chain without the node that has the most neighbours.
            node = max(decidable, key=lambda other: (len(near[other]), sizes[other], -other))
            around = near.pop(node)
        else:
            work, widest = work + entries, max(widest, entries)
            order.append(node)
            around = near.pop(node)
            for other in around:
                near[other] |= around
        for other in around:
            near[other] -= {node, other}
            heappush(queue, (joint(other), other))
        if decidable:
            queue.extend((joint(other), other) for other in near)
            heapify(queue)
    return order, work, widest


def eliminations_in(model: FiniteModel, order: Sequence[int]) -> tuple[list[Elimination], list[int]]:
    """Return the eliminations of free nodes in order, and the numbers of the eliminations whose message is a scalar."""
    rank = {node: at for at, node in enumerate(order)}
    near = {node: {other for other in model.tables[node] if other in rank} for node in order}
    waiting: dict[int, list[int]] = {node: [] for node in order}
    steps: list[Elimination] = []
    roots: list[int] = []
    for number, node in enumerate(order):
        scope = tuple(sorted(near[node]))
        for other in scope:
            near[other] = (near[other] | near[node]) - {node, other}
        sizes = {other: model.size(other) for other in (node, *scope)}

        def shape(nodes: Collection[int], among: Sequence[int] = (node, *scope), sizes: Mapping[int, int] = sizes):
            return tuple(sizes[other] if other in nodes else 1 for other in among)

        tables = model.tables[node]
        fixed = [model.unary[node].reshape(1, *shape((node,)))]
        fixed += [tables[other].reshape(1, *shape((node, other))) for other in scope if other in tables]
        before = waiting.pop(node)
        messages = [(at, steps[at].scope.index(node), shape(steps[at].scope)) for at in before]
        decided = tuple((other, model.tables[other][node]) for other in tables if other not in rank)
        steps.append(Elimination(node, scope, decided, tuple(fixed), tuple(messages)))
        for at in before:
            for other in steps[at].scope:
                if other != node:
                    waiting[other].remove(at)
        for other in scope:
            waiting[other].append(number)
        if not scope:
            roots.append(number)
    return steps, roots
