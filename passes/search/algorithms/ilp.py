"""
`algorithm=ilp`: the strategy as an integer program (`ilp_model.py`), with its lower bound and gap.

If memory suffices, the problem is first reduced without losing the optimum (`reduction.py`). If the optimum does not
fit, the program gets a constraint at the program point of its peak,

    bytes alive at t  <=  limit,

and is solved again until the strategy found fits. A price of one second per byte at t adds exactly the bytes of a
decision at t to its costs (`memory.Prices`). A strategy may exceed the limit at a point that already has a constraint,
as collectives take buffers that no decision owns; then the constraint is tightened by the excess. A tightened program
proves no bound, so the last bound before the tightening stays.

The program starts from the strategy of coordinate descent, which costs at least the optimum.

A step of the budget is a unit of CP-SAT's deterministic time, a few seconds; all programs share the budget.

Source: CP-SAT (Perron and Furnon, OR-tools); the formulation is the local polytope of a pairwise model with integral
nodes (Wainwright and Jordan, "Graphical models, exponential families, and variational inference", 2008, section 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NoReturn

import numpy as np
from xdsl.utils.exceptions import PassFailedException

from ..memory import Prices, StrategyMemory
from ..problem import Costs, Edge, Infeasible, Problem, Solution
from ..reduction import Graph, recover, reduce
from ..strategy_problem import StrategyProblem
from ..within_memory import ConstrainedSolution, measured, nothing_fits, require_arguments_fit
from . import coordinate_descent
from .ilp_model import IntegerProgram, IntegerResult, MemoryConstraint
from .interface import Effort, SearchTask
from .layered_space import REDUCTION

START = "start"
"""The name of the part that finds an initial strategy."""

PARTS = frozenset({REDUCTION, START})

BUDGET = 10
"""Units of deterministic time by default."""

_ROUNDS = 12
"""The maximum number of programs to solve."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the cheapest strategy that fits, with a lower bound on the cost of all strategies that fit."""
    return _ProgramSearch(task).run()


class _ProgramSearch:
    """One run of the search; one use."""

    def __init__(self, task: SearchTask) -> None:
        self.task, self.memory = task, StrategyMemory(task.view, task.cluster)
        self.left = float(task.effort.budget if task.effort.budget is not None else BUDGET)
        self.counts = Counter[str]()
        self.position = {op: at for at, op in enumerate(task.view.func.body.block.ops)}

    def run(self) -> ConstrainedSolution:
        """Solve without constraints on memory and then, if the optimum does not fit, with constraints."""
        require_arguments_fit(self.task.view, self.task.free, self.task.limit)
        first = measured(self.memory, self.task.free, self.task.free, self._unlimited(), bound=None)
        return first if first.peak_bytes <= self.task.limit else self._limited(first)

    def _start(self, limit: float) -> ConstrainedSolution | None:
        """Return a strategy that fits in `limit` bytes, or None if coordinate descent finds none."""
        if START in self.task.effort.without:
            return None
        try:
            return coordinate_descent.search(replace(self.task, limit=limit, effort=Effort(self.task.effort.seed)))
        except PassFailedException:
            return None

    def _unlimited(self) -> Solution:
        """Return the optimum of the problem without prices, or the best assignment found."""
        problem = self.task.free.problem
        graph = Graph.of(problem)
        trail = [] if REDUCTION in self.task.effort.without else reduce(graph)
        nodes = list(graph.unary)
        numbers = {node: at for at, node in enumerate(nodes)}
        edges = [
            Edge(numbers[node], numbers[other], graph.store[table])
            for node, around in graph.adjacency.items()
            for other, table in around.items()
            if node < other
        ]
        small = Problem(tuple(graph.store[costs] for costs in graph.unary.values()), tuple(edges))
        start = self._start(inf)
        ceiling = start.cost - graph.offset if start is not None else _largest_cost(small)
        program = IntegerProgram(small, [], ceiling)
        if start is not None:
            # The program has no variables for states that reduction dropped.
            states = ((graph.store[graph.states[node]], start.solution.assignment[node]) for node in nodes)
            program.hint([np.flatnonzero(left == state).tolist() for left, state in states])
        result = self._solve(program)
        if result.assignment is None:
            if start is None:
                self._refuse(result, nodes)
            assignment = start.solution.assignment
        else:
            pairs = zip(nodes, result.assignment.tolist(), strict=True)
            chosen = {node: int(graph.store[graph.states[node]][at]) for node, at in pairs}
            recover(graph.store, trail, chosen)
            assignment = np.array([chosen[node] for node in range(len(problem.unary))], np.int64)
        cost = problem.cost(assignment)
        if start is not None and start.cost < cost:
            assignment, cost = start.solution.assignment, start.cost
        counts = {**self.counts, "reduced": len(trail)}
        return Solution(assignment, cost, min(graph.offset + result.bound, cost), counts)

    def _limited(self, first: ConstrainedSolution) -> ConstrainedSolution:
        """Return the cheapest strategy found with constraints on memory, which are added where needed."""
        task, candidate, bound, is_proved = self.task, first, first.lower_bound, True
        base = task.build(Prices({self.position[first.peak_op]: 0.0}))
        start, least = self._start(task.limit), first.peak_bytes
        ceiling = start.cost if start is not None else _largest_cost(base.problem)
        constraints: dict[int, MemoryConstraint] = {}
        for _ in range(_ROUNDS):
            point = self.position[candidate.peak_op]
            if point in constraints:
                is_proved = False
                excess = candidate.peak_bytes - task.limit
                constraints[point] = replace(constraints[point], limit=constraints[point].limit - excess)
            else:
                priced = self.task.build(Prices({point: 1.0})).problem
                nodes = zip(priced.unary, base.problem.unary, strict=True)
                edges = zip(priced.edges, base.problem.edges, strict=True)
                tables = [(with_bytes.table, plain.table) for with_bytes, plain in edges]
                constraints[point] = MemoryConstraint(_differences(list(nodes)), _differences(tables), self.task.limit)
            program = IntegerProgram(base.problem, list(constraints.values()), ceiling)
            if start is not None:
                program.hint([[state] for state in _states_in(base, task.free, start.solution)])
            result = self._solve(program)
            bound = max(bound, result.bound) if is_proved else bound
            if result.assignment is None:
                break
            cost = base.problem.cost(result.assignment)
            counts = {**self.counts, "points": len(constraints)}
            candidate = measured(self.memory, base, task.free, Solution(result.assignment, cost, cost, counts), bound)
            least = min(least, candidate.peak_bytes)
            if candidate.peak_bytes <= task.limit:
                best = candidate if start is None or candidate.cost <= start.cost else start
                return replace(best, lower_bound=min(bound, best.cost))
        if start is None:
            raise nothing_fits(least, task.limit)
        return replace(start, lower_bound=min(bound, start.cost))

    def _solve(self, program: IntegerProgram) -> IntegerResult:
        result = program.solve(max(self.left, 0.0), self.task.effort.seed)
        self.left -= result.spent
        self.counts["programs"] += 1
        self.counts["variables"] += program.variables
        self.counts["branches"] += result.branches
        self.counts["proved"] += result.is_proved
        return result

    def _refuse(self, result: IntegerResult, nodes: Sequence[int]) -> NoReturn:
        if result.bound == inf:
            raise Infeasible(nodes, "no assignment has finite cost")
        raise PassFailedException(
            "the integer program found no strategy within its budget; use a larger budget, or algorithm=eliminate"
        )


def _largest_cost(problem: Problem) -> float:
    """Return an upper bound on the cost of every allowed assignment."""
    arrays = (*problem.unary, *(edge.table for edge in problem.edges))
    return sum(float(array[np.isfinite(array)].max(initial=0.0)) for array in arrays)


def _differences(pairs: Sequence[tuple[Costs, Costs]]) -> tuple[Costs, ...]:
    """Return the bytes in every array: its costs at a price of one minus its costs without prices."""
    cache: dict[tuple[int, int], Costs] = {}
    for priced, plain in pairs:
        if (key := (id(priced), id(plain))) not in cache:
            cache[key] = np.where(np.isinf(plain), 0.0, priced - np.where(np.isinf(plain), 0.0, plain)).round()
    return tuple(cache[id(priced), id(plain)] for priced, plain in pairs)


def _states_in(base: StrategyProblem, free: StrategyProblem, solution: Solution) -> list[int]:
    """Translate a solution of the problem without prices into states of the problem with prices."""
    decisions = zip(base.decisions, free.decisions, solution.assignment.tolist(), strict=True)
    return [priced.states.index(plain.states[state]) for priced, plain, state in decisions]  # pyright: ignore
