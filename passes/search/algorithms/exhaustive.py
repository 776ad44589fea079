"""
`algorithm=exhaustive`: try every assignment of states to decisions (AutoDDL, sections 4.5.1 and 4.6).

    minimise  Cost([s_1, ..., s_L])  over all decisions s_1 of the first layer, ..., s_L of the last,

where equal layers are tied. In a small problem every decision is tried. In a larger one only products are, and all
other nodes are completed at least cost for each choice (`layered_space.py`), which is exact as well.

A step of the budget is one assignment. A problem with more assignments than the budget is refused.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..problem import MAX_BRUTE_FORCE, Infeasible, Solution, TooManyError, brute_force
from ..strategy_problem import StrategyProblem
from ..within_memory import ConstrainedSolution
from .interface import SearchTask, within_limit
from .layered_space import LayeredSpace
from .ties import TIES, TiedProblem, least_cost, tied

COMPLETION = "completion"
"""The name of the part that completes the choices of products. Small problems can be solved without it."""

PARTS = frozenset({TIES, COMPLETION})

_MAX_ENTRIES = 2_000_000_000
"""The maximum number of table entries computed for all choices together: tens of seconds."""

_AT_ONCE = 1 << 20
"""The maximum number of entries of one table for the choices that are completed together."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the optimum of a small problem; raise TooManyError if there are too many assignments to try."""
    budget = min(task.effort.budget or MAX_BRUTE_FORCE, MAX_BRUTE_FORCE)
    without = task.effort.without

    def solved(problem: StrategyProblem, allowance: float) -> Solution:
        nodes = tied(problem, task.view, without)
        assignments = prod(map(len, nodes.problem.unary))
        if assignments <= budget:
            try:
                best = brute_force(nodes.problem)
            except Infeasible as error:
                raise nodes.explained(error) from error
            assignment = nodes.expanded(best.assignment)
            cost = problem.problem.cost(assignment)
            statistics = {"tied": nodes.tied_nodes, "visited": int(best.statistics["assignments"])}
            return Solution(assignment, cost, _bound(problem, nodes, cost), statistics)
        if COMPLETION not in without:
            space = LayeredSpace(problem, task.view, without & {TIES})
            choices = prod(map(space.model.size, space.decided))
            if choices <= budget and choices * space.completion.work <= _MAX_ENTRIES:
                return _by_products(space, choices)
        shown = f"{float(assignments):.3g}" if assignments < 1e300 else "more than 1e300"
        raise TooManyError(f"{shown} assignments are too many to try; the limit is {budget}")

    return within_limit(task, solved)


def _by_products(space: LayeredSpace, choices: int) -> Solution:
    """Return the optimum by trying every choice of states of products."""
    sizes = tuple(map(space.model.size, space.decided))
    at_once = max(1, _AT_ONCE // space.completion.widest)
    least, best = np.inf, 0
    for start in range(0, choices, at_once):
        numbers = np.arange(start, min(start + at_once, choices))
        states = np.unravel_index(numbers, sizes) if sizes else ()
        costs = space.completion.costs(dict(zip(space.decided, states, strict=True)))
        if costs.min() < least:
            least, best = float(costs.min()), start + int(costs.argmin())
    chosen = np.unravel_index(best, sizes) if sizes else ()
    choice = {node: int(state) for node, state in zip(space.decided, chosen, strict=True)}
    solution = space.solution(choice, {"visited": choices})
    if solution.cost == np.inf:
        raise Infeasible(range(len(solution.assignment)), "no assignment has finite cost")
    bound = _bound(space.given, space.tied, solution.cost)
    return Solution(solution.assignment, solution.cost, bound, solution.statistics)


def _bound(problem: StrategyProblem, nodes: TiedProblem, cost: float) -> float:
    """Return a lower bound; `cost` is the least cost of a tied assignment, but an untied one may cost less."""
    return min(cost, least_cost(problem.problem)) if nodes.tied_nodes else cost
