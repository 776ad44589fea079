"""`algorithm=eliminate`, the default: the exact optimum by reduction, dual ascent and bucket elimination."""

from __future__ import annotations

from ..eliminate import Limits, solve
from ..problem import Solution
from ..strategy_problem import StrategyProblem
from ..within_memory import ConstrainedSolution
from .interface import SearchTask, within_limit

PARTS: frozenset[str] = frozenset()

_BRANCHES = 20
"""How much the search may try out at each price of memory, where bounds alone do not decide."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the optimum, or, where memory is short, the best that prices of memory find."""
    return within_limit(task, _solved)


def _solved(problem: StrategyProblem, allowance: float) -> Solution:
    limits = Limits(allowance=allowance, branches=_BRANCHES) if allowance else Limits()
    return solve(problem.problem, limits=limits)
