"""`algorithm=eliminate`, the default: the exact optimum by reduction, dual ascent and bucket elimination."""

from __future__ import annotations

from ..eliminate import Limits, solve
from ..problem import Solution
from ..strategy_problem import StrategyProblem
from ..within_memory import ConstrainedSolution
from .interface import SearchTask, within_limit

PARTS: frozenset[str] = frozenset()

_BRANCHES = 20
"""The number of branches that the search may try at each price of memory, if bounds alone do not suffice."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the optimum or, if memory is short, the best strategy that prices of memory find."""
    return within_limit(task, _solved)


def _solved(problem: StrategyProblem, allowance: float) -> Solution:
    limits = Limits(allowance=allowance, branches=_BRANCHES) if allowance else Limits()
    return solve(problem.problem, limits=limits)
