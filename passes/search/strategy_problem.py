"""The discrete problem of choosing a strategy for a step: its decisions, their costs, and the reshardings of edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.compute import ComputeOp
from ...ir.ratios import Splits
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from .objective import Price, ShardingChange, Weights
from .problem import Costs, Edge, Problem, States
from .shared_tables import Port, Tables


@dataclass(frozen=True)
class Decision:
    """One node: the subject of the decision, and the alternatives."""

    subject: ComputeOp | SSAValue
    states: tuple[Signature, ...] | tuple[Sharding, ...]
    copy: bool = False
    regather: tuple[bool, ...] = ()
    """For a copy, by state: whether it is gathered again for backward."""


@dataclass(frozen=True)
class StrategySums:
    """
    The seconds of a strategy by stream, each as if the streams did not overlap.

    Args:
        compute: total of all ops, each on its slowest device.
        beside: collectives that may overlap with compute (see `Weights.parameters`), over the busiest axis.
        blocking: all other collectives.
        busiest: the part of `blocking` over the busiest axis. Parts that take turns may use all axes at a time.
    """

    compute: float
    beside: float
    blocking: float
    busiest: float


@dataclass(frozen=True)
class EdgeTraffic:
    """
    The change of a value's sharding behind an edge.

    Args:
        sources: shardings before the change, by state of node u.
        targets: shardings after it, by state of node v.
        seconds: returns the unweighted seconds, in full buckets if it may overlap with compute, or None if free.
    """

    move: ShardingChange
    price: Price
    splits: Splits
    sources: Port
    targets: Port
    seconds: Callable[[], Costs | None]


@dataclass
class StrategyProblem:
    """
    The problem of one step, with the subject of every node.

    Args:
        seconds: unweighted seconds of each node's op, by state, or None for a value.
        traffic: the change of sharding of each edge.
        ends: by node and state, the cost of resharding its result where no edge covers it; weighted as activations.
        spatial: the spatial axes.
    """

    problem: Problem
    decisions: list[Decision]
    seconds: list[Costs | None]
    traffic: list[EdgeTraffic]
    ends: dict[int, Costs]
    spatial: frozenset[str]

    def states_within(self, axes: AbstractSet[str]) -> list[States]:
        """Return by decision the states that use only `axes`, or all states of a decision that has none of these."""
        cache: dict[int, States] = {}
        for states in (decision.states for decision in self.decisions):
            if id(states) not in cache:
                within = [number for number, state in enumerate(states) if _axes_of(state) <= axes]
                cache[id(states)] = np.array(within or range(len(states)))
        return [cache[id(decision.states)] for decision in self.decisions]

    def sums(
        self,
        assignment: States,
        node_factors: Sequence[float] | None = None,
        edge_factors: Sequence[float] | None = None,
    ) -> StrategySums:
        """Return the seconds of an assignment by stream; each node and edge counts as often as its factor says."""
        nodes = node_factors if node_factors is not None else [1.0] * len(self.seconds)
        edges = edge_factors if edge_factors is not None else [1.0] * len(self.traffic)
        by_node = zip(self.seconds, assignment, nodes, strict=True)
        compute = sum(factor * float(costs[x]) for costs, x, factor in by_node if costs is not None)
        blocking, by_axis = 0.0, {beside: dict.fromkeys(self.spatial, 0.0) for beside in (False, True)}
        cache: dict[tuple[int, bool], Costs | None] = {}
        for edge, traffic, factor in zip(self.problem.edges, self.traffic, edges, strict=True):
            # Equal changes of sharding share a table.
            key = (id(edge.table), traffic.price.beside)
            if key not in cache:
                cache[key] = traffic.seconds()
            if (seconds := cache[key]) is not None:
                u, v = int(assignment[edge.u]), int(assignment[edge.v])
                if spent := factor * float(seconds[u, v]):
                    blocking += 0.0 if traffic.price.beside else spent
                    for axis in self.spatial & _changed(traffic.sources[u], traffic.targets[v]):
                        by_axis[traffic.price.beside][axis] += spent
        busiest, beside = (max(seconds.values(), default=0.0) for seconds in by_axis.values())
        return StrategySums(compute, beside, blocking, busiest)


def _axes_of(state: Signature | Sharding) -> set[str]:
    """Return the axes that a state uses."""
    shardings = (*state.operands, *state.results) if isinstance(state, Signature) else (state,)
    return {axis for sharding in shardings for axis in (*sharding.split_axes, *sharding.partial_axes)}


def _changed(source: Sharding, target: Sharding) -> set[str]:
    """Return the axes that two shardings use differently."""

    def placed(given: Sharding) -> set[tuple[str, int]]:
        dims = {(axis, number) for number, dim in enumerate(given.dims) for axis in dim.axes}
        return dims | {(axis, -1) for axis in given.partial_axes}

    return {axis for axis, _ in placed(source) ^ placed(target)}


def repriced(problem: StrategyProblem, before: Weights, after: Weights, tables: Tables) -> StrategyProblem:
    """Return the problem at the weights `after`; it was built at the weights `before`, without memory prices."""
    unary = list(problem.problem.unary)
    for node, (decision, seconds) in enumerate(zip(problem.decisions, problem.seconds, strict=True)):
        if seconds is None or not isinstance(decision.subject, ComputeOp):
            continue
        key = ("repriced", id(seconds), after.of_op(decision.subject))
        if key not in tables.unary:
            tables.kept.append(seconds)
            tables.unary[key] = after.of_op(decision.subject) * seconds
        unary[node] = tables.unary[key]
    scale = after.activations / before.activations
    ends = {node: np.where(np.isinf(costs), costs, scale * costs) for node, costs in problem.ends.items()}
    for node, costs in ends.items():
        unary[node] = unary[node] + costs
    cache: dict[tuple[int, bool], Costs] = {}
    edges: list[Edge] = []
    for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
        # Equal changes of sharding share a table, before and after.
        key = (id(edge.table), traffic.price.beside)
        if key not in cache:
            old = traffic.price
            price = replace(after.price(traffic.move), turns=old.turns, times=old.times, reduces=old.reduces)
            table = tables.table(traffic.move.value, traffic.splits, traffic.sources, traffic.targets, price)
            cache[key] = table if table is not None else np.zeros_like(edge.table)
        edges.append(Edge(edge.u, edge.v, cache[key]))
    return replace(problem, problem=Problem(tuple(unary), tuple(edges)), ends=ends)
