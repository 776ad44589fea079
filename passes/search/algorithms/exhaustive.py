"""`algorithm=exhaustive`: every assignment of states to decisions is tried (AutoDDL, section 4.6)."""

from __future__ import annotations

from ..problem import Solution, brute_force
from ..strategy_problem import StrategyProblem
from ..within_memory import Found
from .interface import SearchTask, within_limit


def search(task: SearchTask) -> Found:
    """Return the optimum of a small problem; TooManyError where there are too many assignments to try."""
    return within_limit(task, _solved)


def _solved(problem: StrategyProblem, allowance: float) -> Solution:
    return brute_force(problem.problem)
