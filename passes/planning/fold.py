"""
Fold a problem with equal layers: four layers represent all, and each cost counts for all the layers it represents.

A step of n equal layers is represented by a step of `KEPT` = 4 (`shrink.shrunk`): the first, two from the middle that
share every decision, and the last. Let a, m and z be the decisions of the first layer, of the middle layers and of the
last layer, f the cost of a layer, and g the cost between two neighbours. Then

    sum of the n layers  =  f(a) + (n - 2) f(m) + f(z) + g(a, m) + (n - 3) g(m, m) + g(m, z)

`Folder.folded` gives these factors to the nodes and edges of the short step's problem and merges the middle layers.
Its solutions, with their costs, are the solutions of the whole step's problem that decide the same for all layers but
the first and the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...dialects.compute import ComputeOp
from ..search.decided import Counterparts
from ..search.problem import Costs, Edge, Problem, States
from ..search.strategy_problem import StrategyProblem, StrategySums
from ..step.equal_layers import LayerRun, longest_run, places
from ..step.layers import Layers, find_layers
from ..step.step_view import StepView, mesh_of_module, step_functions
from .shrink import shrunk

KEPT = 4
"""Number of layers that represent all."""

WORTHWHILE = 6
"""Least number of equal layers to fold."""

_FIRST, _MIDDLE, _SAME, _LAST = range(KEPT)


@dataclass(frozen=True)
class Folding:
    """
    A step of many equal layers, and the short step that represents it.

    Args:
        module: the short step.
        count: number of equal layers of the whole step.
        whole: the whole step.
        found: the op and argument of the short step that represents each op and argument of the whole step.
    """

    module: ModuleOp
    count: int
    whole: ModuleOp = field(repr=False)
    found: Counterparts = field(repr=False)

    def counterparts(self, module: ModuleOp) -> Counterparts | None:
        """Return the ops and arguments of the short step that represent a step of two or more layers, or None."""
        if module is self.whole:
            return self.found
        return _Matcher(_layered(self.module), _layered(module)).run()


def folding(module: ModuleOp) -> Folding | None:
    """Return the folding of a step, or None if too few layers are equal or they cannot be removed."""
    layered = _layered(module) if len(step_functions(module)) == 1 else None
    if layered is None or layered.run is None or layered.run.count < WORTHWHILE:
        return None
    short = shrunk(module, KEPT)
    if short is None:
        return None
    counterparts = _Matcher(_layered(short), layered).run()
    return Folding(short, layered.run.count, module, counterparts) if counterparts is not None else None


@dataclass(frozen=True)
class _Layered:
    """A step with its layers and its run of equal layers."""

    view: StepView
    layers: Layers
    run: LayerRun | None


def _layered(module: ModuleOp) -> _Layered:
    (func,) = step_functions(module)
    view = StepView(func, mesh_of_module(module))
    layers = find_layers(view)
    return _Layered(view, layers, longest_run(view, layers))


class _Matcher:
    """Matches each op and argument of a longer step to one of the short step; an instance is used once."""

    def __init__(self, short: _Layered, whole: _Layered) -> None:
        self.short, self.whole = short, whole
        self.ops: dict[Operation, Operation] = {}
        self.arguments: dict[SSAValue, BlockArgument] = {}

    def run(self) -> Counterparts | None:
        short, whole = self.short.run, self.whole.run
        if short is None or whole is None or short.count != KEPT or whole.count < 2 or short.first != whole.first:
            return None
        for number, layer in enumerate(whole.ops):
            inner = 0 < number < whole.count - 1
            represented = short.ops[_MIDDLE if inner else _LAST if number else _FIRST]
            if len(represented) != len(layer):
                return None
            self.ops.update(zip(layer, represented, strict=True))
        if not self._rest() or not self._arguments():
            return None
        short_ops = {op: at for at, op in enumerate(self.short.view.func.body.block.ops)}
        ops = tuple(short_ops[self.ops[op]] for op in self.whole.view.func.body.block.ops)
        arguments = tuple(self.arguments[argument].index for argument in self.whole.view.func.body.block.args)
        return Counterparts(ops, arguments)

    def _rest(self) -> bool:
        """Pair the ops outside the equal layers, in program order."""
        inside = (
            {op for layer in self.short.run.ops for op in layer} if self.short.run is not None else set[Operation]()
        )
        short = [op for op in self.short.view.func.body.block.ops if op not in inside]
        whole = [op for op in self.whole.view.func.body.block.ops if op not in self.ops]
        if len(short) != len(whole):
            return False
        self.ops.update(zip(whole, short, strict=True))
        return all(_alike(op, other) for op, other in self.ops.items())

    def _arguments(self) -> bool:
        """Pair arguments by their users, and unused arguments by their order."""
        for op, other in self.ops.items():
            if isinstance(op, ComputeOp):
                for value, like in zip(op.operands, other.operands, strict=True):
                    if not isinstance(value, BlockArgument):
                        continue
                    if not isinstance(like, BlockArgument) or self.arguments.setdefault(value, like) is not like:
                        return False
        left, over = (
            [argument for argument in layered.view.func.body.block.args if not _is_used(argument)]
            for layered in (self.whole, self.short)
        )
        if len(left) != len(over):
            return False
        self.arguments.update(zip(left, over, strict=True))
        return all(argument.type == other.type for argument, other in self.arguments.items())


def _is_used(value: SSAValue) -> bool:
    return any(isinstance(use.operation, ComputeOp) for use in value.uses)


def _alike(op: Operation, other: Operation) -> bool:
    if isinstance(op, ComputeOp) and isinstance(other, ComputeOp):
        return op.name == other.name and op.use_key() == other.use_key()
    return op.name == other.name


@dataclass(frozen=True)
class FoldedProblem:
    """
    The problem of a short step whose equal layers take equal decisions.

    Args:
        given: the problem of the short step.
        problem: the folded problem, with the factors and without the second middle layer.
        of: for each node of `given`, its node of `problem`.
        node_factors, edge_factors: for each node and edge of `given`, the factor of its cost.
    """

    given: StrategyProblem
    problem: Problem
    of: tuple[int, ...]
    node_factors: tuple[float, ...]
    edge_factors: tuple[float, ...]

    def merged(self, states: Sequence[States]) -> list[States]:
        """Return the states of each node of the folded problem, given the states of each node of the short step's."""
        by_node = dict(zip(self.of, states, strict=True))
        return [by_node[node] for node in range(len(self.problem.unary))]

    def expanded(self, assignment: States) -> States:
        """Return a solution of the folded problem as a solution of the short step's problem."""
        return np.array([assignment[node] for node in self.of], dtype=np.int64)

    def sums(self, assignment: States) -> StrategySums:
        """Return the seconds of the whole step under an expanded solution."""
        return self.given.sums(assignment, self.node_factors, self.edge_factors)


@dataclass(frozen=True)
class _DecisionPlace:
    """The place of a decision: the equal layer that contains it, if any, and its subject there."""

    layer: int | None
    subject: object


class Folder:
    """
    Folds problems of a view of the short step.

    Args:
        view: a view of the short step on some mesh.
        count: number of equal layers that the short step represents.
    """

    def __init__(self, view: StepView, count: int) -> None:
        layers = find_layers(view)
        run = longest_run(view, layers)
        assert run is not None
        self.count = count
        self.places = {subject: _DecisionPlace(layer, place) for subject, layer, place in places(layers, run)}
        self.scaled: dict[tuple[int, float], tuple[Costs, Costs]] = {}

    def folded(self, given: StrategyProblem) -> FoldedProblem | None:
        """Return the folded problem, or None if the middle layers have different decisions."""
        places = [self._place(problem.subject, problem.copy) for problem in given.decisions]
        at = {place.subject: node for node, place in enumerate(places) if place.layer == _MIDDLE}
        first = {node: at.get(place.subject) for node, place in enumerate(places) if place.layer == _SAME}
        if len(at) != len(first):
            return None
        for node, other in first.items():
            if other is None or given.decisions[node].states != given.decisions[other].states:
                return None
        nodes = [node for node in range(len(places)) if node not in first]
        number = {node: index for index, node in enumerate(nodes)}
        of = tuple(number[node if (other := first.get(node)) is None else other] for node in range(len(places)))
        factors = tuple(self._node_factor(place.layer) for place in places)
        between = [self._edge_factor(places[edge.u].layer, places[edge.v].layer) for edge in given.problem.edges]
        if any(factor is None for factor in between):
            return None
        edge_factors = tuple(factor or 0.0 for factor in between)
        return FoldedProblem(
            given, self._merged(given.problem, nodes, of, factors, edge_factors), of, factors, edge_factors
        )

    def _merged(
        self,
        given: Problem,
        kept: list[int],
        of: tuple[int, ...],
        factors: tuple[float, ...],
        edge_factors: tuple[float, ...],
    ) -> Problem:
        unary = [self._times(given.unary[node], factors[node]) for node in kept]
        for node in set(range(len(of))).difference(kept):
            unary[of[node]] = unary[of[node]] + self._times(given.unary[node], factors[node])
        edges: list[Edge] = []
        for edge, factor in zip(given.edges, edge_factors, strict=True):
            u, v, table = of[edge.u], of[edge.v], self._times(edge.table, factor)
            if u == v:
                unary[u] = unary[u] + np.ascontiguousarray(np.diagonal(table))
            else:
                edges.append(Edge(u, v, table))
        return Problem(tuple(unary), tuple(edges))

    def _times(self, costs: Costs, factor: float) -> Costs:
        """Return costs times a factor; equal results are the same object."""
        if factor == 1.0:
            return costs
        key = (id(costs), factor)
        if key not in self.scaled:
            self.scaled[key] = costs, factor * costs
        return self.scaled[key][1]

    def _node_factor(self, layer: int | None) -> float:
        return (self.count - 2) / 2 if layer in (_MIDDLE, _SAME) else 1.0

    def _edge_factor(self, one: int | None, other: int | None) -> float | None:
        """Return the factor of an edge, or None for an edge between layers that are not neighbours."""
        if one is None or other is None or one == other:
            return max(self._node_factor(one), self._node_factor(other))
        if abs(one - other) > 1:
            return None
        return float(self.count - 3) if {one, other} == {_MIDDLE, _SAME} else 1.0

    def _place(self, subject: ComputeOp | SSAValue, copy: bool) -> _DecisionPlace:
        place = self.places.get(subject)
        if place is None:
            return _DecisionPlace(None, subject)
        return _DecisionPlace(place.layer, (place.subject, copy))
