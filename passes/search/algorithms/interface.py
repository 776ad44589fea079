"""
The interface of the algorithms of `search-strategy`.

An algorithm gets a `SearchTask` and returns a `ConstrainedSolution`. All algorithms share the sharding rules, the
discrete problem (`strategy_problem.py`) and its cost, so their results are comparable. Most algorithms are solvers:
they solve a discrete problem without regard to memory, and `within_limit` repeats them at rising prices of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Protocol

from ....ir.cluster import Cluster
from ...step.step_view import StepView
from ..memory import Prices
from ..problem import Solution
from ..strategy_problem import StrategyProblem
from ..within_memory import Build, ConstrainedSolution, solve_within


@dataclass(frozen=True)
class Effort:
    """
    The limits and switches of one run of an algorithm.

    Args:
        seed: seed of random choices; an algorithm gives the same result for the same seed.
        budget: number of steps after which the algorithm returns the best result so far, or None for its default; each
            algorithm defines its steps.
        without: names of parts of the algorithm to switch off, to measure their benefit.
    """

    seed: int = 0
    budget: int | None = None
    without: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SearchTask:
    """
    The problem of finding a strategy for a step, or for one stage of it.

    Args:
        view: the step.
        cluster: devices and links of the step's mesh.
        build: returns the discrete problem of the step at given prices of memory.
        limit: bytes per device that a strategy may need.
    """

    view: StepView
    cluster: Cluster
    build: Build
    limit: float
    effort: Effort = Effort()

    @cached_property
    def free(self) -> StrategyProblem:
        """Return the problem without prices of memory."""
        return self.build(Prices())

    @property
    def random(self) -> Random:
        """Return a new generator of random numbers, which depends only on the seed."""
        return Random(self.effort.seed)


class Algorithm(Protocol):
    """An algorithm of `search-strategy`."""

    def __call__(self, task: SearchTask) -> ConstrainedSolution:
        """
        Return a strategy that fits in memory.

        Raises:
            Infeasible: no strategy satisfies all constraints.
            TooManyError: the problem is too large for the algorithm.
            PassFailedException: no strategy was found that fits in memory.
        """
        ...


Solver = Callable[[StrategyProblem, float], Solution]
"""Solves a problem; the second argument is the allowed distance from the optimum, in seconds."""


def within_limit(task: SearchTask, solve: Solver) -> ConstrainedSolution:
    """Return the cheapest strategy within the memory limit that a solver finds at rising prices of memory."""

    def solved(problem: StrategyProblem, allowance: float, known: Solution | None) -> Solution:
        return solve(problem, allowance) if known is None else known

    return solve_within(task.view, task.cluster, task.build, solved, task.limit)
