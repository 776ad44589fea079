"""
A pairwise model as an integer program for CP-SAT.

With x_i[s] = 1 if node i takes state s, and y_uv[s, t] = 1 if u takes s and v takes t,

    minimise    sum_i unary_i . x_i  +  sum_(u,v) table_uv . y_uv
    such that   sum_s x_i[s] = 1                                     for every node i
                sum_t y_uv[s, t] = x_u[s],  sum_s y_uv[s, t] = x_v[t]    for every edge (u, v)
                sum_i bytes_i . x_i  +  sum_(u,v) bytes_uv . y_uv  <=  limit    for every constraint on memory

and x, y in {0, 1}. The relaxation to fractions is the local polytope, which dual ascent also bounds. Rows of a table
that are equal in costs and bytes share their variables, as do columns.

The least cost of each row of a table, then of each column, moves to the states of its ends, without loss.

Costs and bytes are rounded down to whole units, so a lower bound of the program is a lower bound of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..problem import Costs, Edge, Problem, States
from .pair_tables import FORBIDDEN, PairTable, Units, plus

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

COST_UNITS = 1e9
"""The resolution of costs: the number of units in the cost that no assignment may exceed."""

BYTE_UNITS = 1e6
"""The resolution of bytes: the number of units in a limit."""


@dataclass(frozen=True)
class MemoryConstraint:
    """A limit on the bytes alive at one point, with the bytes by node and state, and by edge and pair of states."""

    unary: tuple[Costs, ...]
    tables: tuple[Costs, ...]
    limit: float


@dataclass(frozen=True)
class IntegerResult:
    """
    The outcome of an integer program.

    Args:
        assignment: states of the best assignment, or None if the solver found no assignment.
        bound: lower bound on the cost of every assignment that satisfies the constraints; inf if there is none.
        spent: deterministic time that the solver took.
        branches: number of decisions that the solver tried.
        is_proved: whether the assignment is optimal, up to the resolution.
    """

    assignment: States | None
    bound: float
    spent: float
    branches: int
    is_proved: bool


class IntegerProgram:
    """
    The program of a problem; one use.

    `ceiling` is a cost that the best assignment does not exceed; choices that cost more by themselves are left out.
    `variables` counts the variables.
    """

    def __init__(self, problem: Problem, constraints: Sequence[MemoryConstraint], ceiling: float) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.constraints, self.ceiling = problem, constraints, ceiling
        self.unit = max(abs(ceiling), 1e-30) / COST_UNITS
        self.model: CpModel = cp_model.CpModel()
        self.variables = 0
        self.costs = _Terms()
        self.bytes = [_Terms() for _ in constraints]
        cache: dict[tuple[int, ...], PairTable] = {}
        tables: list[PairTable] = []
        unary = [self._units(costs) for costs in problem.unary]
        for number, edge in enumerate(problem.edges):
            arrays = (edge.table, *(constraint.tables[number] for constraint in constraints))
            key = tuple(map(id, arrays))
            if key not in cache:
                cache[key] = PairTable.of(self._units(edge.table), self._bytes(arrays[1:]))
            tables.append(cache[key])
            unary[edge.u] = plus(unary[edge.u], cache[key].of_rows)
            unary[edge.v] = plus(unary[edge.v], cache[key].of_columns)
        self.states = [self._node(node, costs) for node, costs in enumerate(unary)]
        for edge, table in zip(problem.edges, tables, strict=True):
            self._edge(edge, table)
        for terms, constraint in zip(self.bytes, constraints, strict=True):
            self.model.add(terms.total() <= int(np.floor(constraint.limit / _byte_unit(constraint))))
        self.model.minimize(self.costs.total())

    def _units(self, costs: Costs) -> Units:
        """Return costs in whole units, with `FORBIDDEN` in place of costs above the ceiling."""
        return np.where(costs > self.ceiling, FORBIDDEN, np.floor(np.minimum(costs, self.ceiling) / self.unit)).astype(
            np.int64
        )

    def _bytes(self, arrays: Sequence[Costs]) -> tuple[Units, ...]:
        """Return bytes in whole units, by constraint."""
        pairs = zip(arrays, self.constraints, strict=True)
        return tuple(np.floor(array / _byte_unit(constraint)).astype(np.int64) for array, constraint in pairs)

    def _node(self, node: int, costs: Units) -> list[IntVar]:
        variables = [self._variable() for _ in costs]
        self.model.add_exactly_one(variables)
        taken = self._bytes([constraint.unary[node] for constraint in self.constraints])
        for state, (variable, cost) in enumerate(zip(variables, costs.tolist(), strict=True)):
            if cost == FORBIDDEN:
                self.model.add(variable == 0)
            else:
                self._charge(variable, cost, [int(counts[state]) for counts in taken])
        return variables

    def _variable(self) -> IntVar:
        self.variables += 1
        return self.model.new_bool_var("")

    def _charge(self, variable: IntVar, cost: int, taken: Sequence[int]) -> None:
        self.costs.add(variable, cost)
        for terms, count in zip(self.bytes, taken, strict=True):
            terms.add(variable, count)

    def _edge(self, edge: Edge, table: PairTable) -> None:
        """Add the variables of an edge, if it has any costs or bytes."""
        if not table.costs.any() and not any(counts.any() for counts in table.taken):
            return
        pairs: dict[tuple[int, int], IntVar] = {}
        for row, column in np.ndindex(*table.costs.shape):
            if (cost := int(table.costs[row, column])) != FORBIDDEN:
                pairs[row, column] = self._variable()
                self._charge(pairs[row, column], cost, [int(counts[row, column]) for counts in table.taken])
        for side, (node, group) in enumerate(((edge.u, table.row_of), (edge.v, table.column_of))):
            ends: dict[int, list[IntVar]] = {at: [] for at in set(group.tolist())}
            for pair, variable in pairs.items():
                ends[pair[side]].append(variable)
            for at, variables in ends.items():
                members = [self.states[node][state] for state in np.flatnonzero(group == at)]
                self.model.add(_sum(variables) == _sum(members))

    def hint(self, states: Iterable[Sequence[int]]) -> None:
        """Set an initial assignment: for each node its state, or an empty sequence."""
        for variables, state in zip(self.states, states, strict=True):
            for at, variable in enumerate(variables if state else ()):
                self.model.add_hint(variable, at in state)

    def solve(self, allowed: float, seed: int) -> IntegerResult:
        """Solve within a limit of deterministic time, with one worker, so that the result is reproducible."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed % 2**31
        solver.parameters.max_deterministic_time = allowed
        # Nearly all of the proof is the bound of the relaxation, so it gets every constraint.
        solver.parameters.linearization_level = 2
        status = solver.solve(self.model)
        spent, branches = float(solver.deterministic_time), int(solver.num_branches)
        if status == cp_model.INFEASIBLE:
            return IntegerResult(None, np.inf, spent, branches, True)
        is_proved = status == cp_model.OPTIMAL
        bound = float(solver.best_objective_bound) * self.unit
        if not is_proved and status != cp_model.FEASIBLE:
            return IntegerResult(None, bound, spent, branches, False)
        chosen = [next(at for at, variable in enumerate(row) if solver.boolean_value(variable)) for row in self.states]
        return IntegerResult(np.array(chosen, np.int64), bound, spent, branches, is_proved)


class _Terms:
    """A sum of variables with coefficients."""

    def __init__(self) -> None:
        self.variables: list[IntVar] = []
        self.coefficients: list[int] = []

    def add(self, variable: IntVar, coefficient: int) -> None:
        """Add one term."""
        if coefficient:
            self.variables.append(variable)
            self.coefficients.append(coefficient)

    def total(self) -> LinearExpr:
        """Return the sum as an expression."""
        return _weighted_sum(self.variables, self.coefficients)


def _byte_unit(constraint: MemoryConstraint) -> float:
    return max(constraint.limit, 1.0) / BYTE_UNITS


def _weighted_sum(variables: Sequence[IntVar], coefficients: Sequence[int]) -> LinearExpr:
    from ortools.sat.python.cp_model import LinearExpr

    return LinearExpr.weighted_sum(variables, coefficients)  # pyright: ignore[reportUnknownMemberType]


def _sum(variables: Sequence[IntVar]) -> LinearExpr:
    return _weighted_sum(variables, [1] * len(variables))
