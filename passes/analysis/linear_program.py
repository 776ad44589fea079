"""Linear programs, solved by GLOP."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any


class LinearProgram:
    """
    A linear program over numbered variables; a sum maps variables to their coefficients.

    OR-tools has another interface with types, which imports pandas and takes 0.3 s more to start.
    """

    def __init__(self) -> None:
        # OR-tools is imported only when it is needed, so that opt-tool starts without it.
        from ortools.linear_solver import pywraplp  # pyright: ignore[reportMissingTypeStubs]

        solver: Any = pywraplp.Solver
        self._optimal = solver.OPTIMAL
        self._solver: Any = solver.CreateSolver("GLOP")
        self._variables: list[Any] = []

    def variable(self, low: float, high: float = inf) -> int:
        """Add a variable between two values."""
        self._variables.append(self._solver.NumVar(low, high, ""))
        return len(self._variables) - 1

    def limit(self, terms: Mapping[int, float], low: float = -inf, high: float = inf) -> None:
        """Keep a sum between two values."""
        constraint = self._solver.Constraint(low, high)
        for variable, coefficient in terms.items():
            constraint.SetCoefficient(self._variables[variable], coefficient)

    def minimized(self, terms: Mapping[int, float]) -> list[float] | None:
        """Return the values of all variables at the least of a sum, or None if there is no optimum."""
        objective = self._solver.Objective()
        for variable, coefficient in terms.items():
            objective.SetCoefficient(self._variables[variable], coefficient)
        objective.SetMinimization()
        if self._solver.Solve() != self._optimal:
            return None
        return [variable.solution_value() for variable in self._variables]
