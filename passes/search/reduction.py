"""
Shrink a pairwise model: drop dominated states, then eliminate nodes with at most two neighbours.

The reduction proceeds in rounds, and within a round by *class* (nodes with the same costs and tables), so that equal
layers are reduced in step and every result is computed once for all of them (see `tables.py`). A chain of equal layers
halves in every round, so the number of rounds is logarithmic in the depth.

Source: the R0, R1 and R2 reductions of partitioned boolean quadratic programming (Scholz and Eckstein 2002;
Hames and Scholz 2006); dominance is Goldstein's criterion for dead-end elimination (1994).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .problem import Costs, Infeasible, Problem, States
from .tables import Handle, Store, absorb_leaf, bypass, least_regret, only_row, take, take_rows, undominated


@dataclass(frozen=True, slots=True)
class Eliminated:
    """
    A node that was eliminated, with the data to choose its state: its costs, and its table to each neighbour.

    `states` and `neighbours_states` hold the original numbers of the states that were left at the time.
    """

    node: int
    unary: Handle
    states: Handle
    neighbours: tuple[int, ...] = ()
    neighbours_states: tuple[Handle, ...] = ()
    tables: tuple[Handle, ...] = ()


@dataclass
class Graph:
    """
    The remaining nodes: their costs, their states by original number, and a table per pair of neighbours.

    `adjacency[u][v]` has a row per state of u; `adjacency[v][u]` is its transpose. `offset` is the constant cost of
    eliminated nodes, beyond the costs added to their neighbours.
    """

    store: Store
    unary: dict[int, Handle] = field(default_factory=dict[int, Handle])
    states: dict[int, Handle] = field(default_factory=dict[int, Handle])
    adjacency: dict[int, dict[int, Handle]] = field(default_factory=dict[int, dict[int, Handle]])
    offset: float = 0.0

    @classmethod
    def of(cls, problem: Problem) -> Graph:
        """Return the graph of `problem`, parallel edges added up."""
        graph = cls(Store())
        for node, costs in enumerate(problem.unary):
            graph.unary[node] = graph.store.intern_shared(costs)
            graph.states[node] = graph.store.apply(all_states, graph.unary[node])
            graph.adjacency[node] = {}
        for edge in problem.edges:
            graph.join(edge.u, edge.v, graph.store.intern_shared(edge.table))
        return graph

    def size(self, node: int) -> int:
        """Return the number of remaining states of `node`."""
        return len(self.store[self.unary[node]])

    def total_states(self) -> int:
        """Return the number of remaining states of all nodes together."""
        return sum(map(self.size, self.unary))

    def below(self, floors: Mapping[int, Costs], ceiling: float) -> Graph:
        """Return a copy whose nodes keep the states with floors of at most `ceiling`, or at least the lowest."""
        copy = self.part(self.unary)
        kept = {node: np.flatnonzero(costs <= max(ceiling, costs.min())) for node, costs in floors.items()}
        copy.keep({node: self.store.intern(keep) for node, keep in kept.items() if len(keep) < self.size(node)})
        return copy

    def part(self, nodes: Iterable[int]) -> Graph:
        """Return a copy with `nodes` only; nodes is a union of connected components."""
        kept = list(nodes)
        return Graph(
            self.store,
            {node: self.unary[node] for node in kept},
            {node: self.states[node] for node in kept},
            {node: dict(self.adjacency[node]) for node in kept},
        )

    def join(self, u: int, v: int, table: Handle) -> None:
        """Add `table` (rows u, columns v) to the joint costs of u and v."""
        present = self.adjacency[u].get(v)
        if present is not None:
            table = self.store.add(present, table)
        self.adjacency[u][v] = table
        self.adjacency[v][u] = self.store.transpose(table)

    def remove(self, node: int) -> dict[int, Handle]:
        """Take `node` out and return its tables by neighbour."""
        tables = self.adjacency.pop(node)
        for neighbour in tables:
            del self.adjacency[neighbour][node]
        del self.unary[node], self.states[node]
        return tables

    def keep(self, kept: Mapping[int, Handle]) -> None:
        """Restrict each node of `kept` to the states at those positions (handles of ascending indices)."""
        apply = self.store.apply
        for node, rows in kept.items():
            self.unary[node] = apply(take_rows, self.unary[node], rows)
            self.states[node] = apply(take_rows, self.states[node], rows)
        for node, rows in kept.items():
            for neighbour, table in self.adjacency[node].items():
                columns = kept.get(neighbour)
                if columns is None:
                    table = apply(take_rows, table, rows)
                elif node < neighbour:
                    table = apply(take, table, rows, columns)
                else:
                    continue
                self.adjacency[node][neighbour] = table
                self.adjacency[neighbour][node] = self.store.transpose(table)

    def components(self) -> list[list[int]]:
        """Return the connected components, each ascending, by first node."""
        seen: set[int] = set()
        components: list[list[int]] = []
        for start in self.adjacency:
            if start in seen:
                continue
            seen.add(start)
            component = [start]
            for node in component:
                fresh = [neighbour for neighbour in self.adjacency[node] if neighbour not in seen]
                seen.update(fresh)
                component.extend(fresh)
            components.append(sorted(component))
        return components


def all_states(unary: States) -> States:
    """Return the numbers of a node's states before any is dropped."""
    return np.arange(len(unary))


def reduce(graph: Graph) -> list[Eliminated]:
    """
    Shrink `graph` in place until no reduction applies; return the records for `recover`.

    Every remaining node has at least two states, all undominated, and at least three neighbours. Raises Infeasible if
    a node has no state left.
    """
    trail: list[Eliminated] = []
    dirty = set(graph.unary)
    while dirty:
        dirty = _eliminate_round(graph, drop_dominated(graph, dirty), trail)
    return trail


def drop_dominated(graph: Graph, nodes: Iterable[int]) -> set[int]:
    """
    Drop dominated states of `nodes`, then states of other nodes that become dominated by that.

    Returns `nodes` and the nodes that may have become reducible. Raises Infeasible if a node has no state left.
    """
    dirty = set(nodes)
    touched = set(dirty)
    while dirty:
        dirty = _drop_states(graph, dirty)
        touched |= dirty
    return touched


def _drop_states(graph: Graph, nodes: set[int]) -> set[int]:
    """
    Drop dominated states of `nodes`, all at once, and return the nodes that may have become reducible.

    This is sound: an optimal assignment stays optimal while its states are exchanged one node after another.
    """
    cache: dict[tuple[Handle, ...], Handle | None] = {}
    kept: dict[int, Handle] = {}
    for node in nodes:
        key = (graph.unary[node], *sorted(graph.adjacency[node].values()))
        if key not in cache:
            cache[key] = _undominated(graph, node)
        keep = cache[key]
        if keep is not None:
            kept[node] = keep
    graph.keep(kept)
    return {touched for node in kept for touched in (node, *graph.adjacency[node])}


def _undominated(graph: Graph, node: int) -> Handle | None:
    """Return the positions of the undominated states of `node`, or None for all; raise Infeasible if it has none."""
    apply = graph.store.apply
    tables = sorted(graph.adjacency[node].values())
    bounds = (apply(least_regret, table, is_compared=False) for table in tables)
    keep = apply(undominated, graph.unary[node], *tables, *bounds)
    count = len(graph.store[keep])
    if not count:
        neighbours = sorted(graph.adjacency[node])
        raise Infeasible((node, *neighbours), f"node {node} has no state that all its neighbours allow")
    return keep if count < graph.size(node) else None


def _eliminate_round(graph: Graph, candidates: Iterable[int], trail: list[Eliminated]) -> set[int]:
    """
    Eliminate candidates with one state or at most two neighbours; a neighbour of an eliminated node has to wait.

    Returns the surviving nodes that were touched or had to wait.
    """
    classes: dict[tuple[Handle, ...], list[int]] = {}
    for node in sorted(candidates):
        if node in graph.unary and (len(graph.adjacency[node]) <= 2 or graph.size(node) == 1):
            key = (graph.unary[node], *sorted(graph.adjacency[node].values()))
            classes.setdefault(key, []).append(node)
    touched: set[int] = set()
    for members in classes.values():
        for node in members:
            if node not in touched:
                touched.update(graph.adjacency[node])
                trail.append(_eliminate(graph, node))
    return touched


def _eliminate(graph: Graph, node: int) -> Eliminated:
    """Remove `node`, with one state or at most two neighbours, and add its minimum cost to its neighbours' tables."""
    apply = graph.store.apply
    unary, states, single = graph.unary[node], graph.states[node], graph.size(node) == 1
    tables = graph.remove(node)
    if single or not tables:
        graph.offset += float(graph.store[unary].min())
        for neighbour, table in tables.items():
            graph.unary[neighbour] = graph.store.add(graph.unary[neighbour], apply(only_row, table))
        return Eliminated(node, unary, states)
    first, *rest = neighbours = tuple(sorted(tables))
    if rest:
        graph.join(first, rest[0], apply(bypass, unary, tables[first], tables[rest[0]]))
    else:
        graph.unary[first] = graph.store.add(graph.unary[first], apply(absorb_leaf, unary, tables[first]))
    neighbours_states = tuple(graph.states[neighbour] for neighbour in neighbours)
    return Eliminated(node, unary, states, neighbours, neighbours_states, tuple(map(tables.__getitem__, neighbours)))


def recover(store: Store, trail: Sequence[Eliminated], chosen: dict[int, int]) -> None:
    """Add the nodes of `trail` to `chosen` (original states by node), in reverse order of elimination."""
    cache: dict[tuple[object, ...], int] = {}
    for record in reversed(trail):
        around = tuple(chosen[neighbour] for neighbour in record.neighbours)
        key = (record.unary, record.states, record.tables, record.neighbours_states, around)
        choice = cache.get(key)
        if choice is None:
            choice = cache[key] = _cheapest(store, record, around)
        chosen[record.node] = choice


def _cheapest(store: Store, record: Eliminated, around: Iterable[int]) -> int:
    """Return the first cheapest state of an eliminated node whose neighbours' states are `around`."""
    costs = store[record.unary].copy()
    for table, states, state in zip(record.tables, record.neighbours_states, around, strict=True):
        costs += store[table][:, np.searchsorted(store[states], state)]
    return int(store[record.states][costs.argmin()])
