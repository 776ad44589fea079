"""
Ties: equal decisions of equal layers take equal states (AutoDDL, section 4.5.1).

The nodes of a tied problem are classes of nodes of the problem. With x_c the state of all members of class c,

    unary_c[x]    =  sum_(i in c) unary_i[x]  +  sum_(edges (u, v) inside c) table_uv[x, x]
    table_cd[x,y] =  sum_(edges (u, v) between c and d) table_uv[x, y]

so a tied assignment costs the same as its expansion. All layers of the longest run of equal layers take part, including
its first and its last. Decisions with different states, because of a pin or another neighbour, are not tied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from ....dialects.compute import ComputeOp
from ...step.equal_layers import longest_run, places
from ...step.layers import find_layers
from ...step.step_view import StepView
from ..problem import Costs, Edge, Infeasible, Problem, States
from ..strategy_problem import StrategyProblem

TIES = "ties"
"""The name of this part of an algorithm."""


@dataclass(frozen=True)
class TiedProblem:
    """
    A problem on classes of nodes.

    Args:
        problem: the problem whose nodes are the classes.
        members: nodes of each class, ascending.
    """

    problem: Problem
    members: tuple[tuple[int, ...], ...]

    @property
    def tied_nodes(self) -> int:
        """Return the number of nodes that take the state of another node."""
        return sum(len(nodes) - 1 for nodes in self.members)

    def expanded(self, states: Sequence[int] | States) -> States:
        """Return the state of every node, given the state of every class."""
        assignment = np.zeros(sum(map(len, self.members)), np.int64)
        for nodes, state in zip(self.members, states, strict=True):
            assignment[list(nodes)] = state
        return assignment

    def explained(self, error: Infeasible) -> Infeasible:
        """Return an error about classes as an error about the first node of each."""
        return Infeasible((self.members[at][0] for at in error.nodes), "no assignment has finite cost")


def tied(problem: StrategyProblem, view: StepView, without: frozenset[str]) -> TiedProblem:
    """Return the problem with the decisions of equal layers tied, or unchanged if ties are switched off."""
    by_subject: Mapping[ComputeOp | SSAValue, Hashable] = {} if TIES in without else _places(view)
    classes: dict[object, list[int]] = defaultdict(list)
    for node, decision in enumerate(problem.decisions):
        place = by_subject.get(decision.subject)
        key = node if place is None else (place, decision.copy, decision.states, decision.regather)
        classes[key].append(node)
    members = tuple(map(tuple, classes.values()))
    if len(members) == len(problem.decisions):
        return TiedProblem(problem.problem, members)
    return TiedProblem(_merged(problem.problem, members), members)


def _places(view: StepView) -> Mapping[ComputeOp | SSAValue, Hashable]:
    """Return the positions of the ops and values of equal layers within their layers."""
    layers = find_layers(view)
    run = longest_run(view, layers)
    return {subject: place for subject, _, place in places(layers, run)} if run is not None else {}


def _merged(problem: Problem, members: Sequence[Sequence[int]]) -> Problem:
    """Return the problem on classes; equal arrays are added up once, so that equal classes share the sum."""
    class_of = {node: at for at, nodes in enumerate(members) for node in nodes}
    arrays = {id(array): array for array in (*problem.unary, *(edge.table for edge in problem.edges))}
    inside: dict[int, Counter[int]] = defaultdict(Counter)
    between: Counter[tuple[int, int, int]] = Counter()
    for edge in problem.edges:
        u, v = class_of[edge.u], class_of[edge.v]
        if u == v:
            inside[u][id(edge.table)] += 1
        else:
            between[u, v, id(edge.table)] += 1
    shared: dict[object, Costs] = {}

    def multiple(array: int, count: int) -> Costs:
        if count == 1:
            return arrays[array]
        if (array, count) not in shared:
            shared[array, count] = arrays[array] * float(count)
        return shared[array, count]

    unary: list[Costs] = []
    for at, nodes in enumerate(members):
        own = Counter(id(problem.unary[node]) for node in nodes)
        key = (frozenset(own.items()), frozenset(inside[at].items()))
        if key not in shared:
            parts = [multiple(array, count) for array, count in own.items()]
            parts += [multiple(array, count).diagonal() for array, count in inside[at].items()]
            shared[key] = np.sum(parts, axis=0) if len(parts) > 1 else parts[0]
        unary.append(shared[key])
    edges = (Edge(u, v, multiple(array, count)) for (u, v, array), count in between.items())
    return Problem(tuple(unary), tuple(edges))


def least_cost(problem: Problem) -> float:
    """Return a lower bound that needs no search: the minimum of every node and every edge, added up."""
    least: dict[int, float] = {}
    for array in (*problem.unary, *(edge.table for edge in problem.edges)):
        if id(array) not in least:
            least[id(array)] = float(array.min())
    nodes = sum(least[id(array)] for array in problem.unary)
    return nodes + sum(least[id(edge.table)] for edge in problem.edges)
