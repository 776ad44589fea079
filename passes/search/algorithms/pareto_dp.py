"""
`algorithm=pareto-dp`: HiDup's search for a strategy of duplex training (HiDup, section 4).

A strategy divides the step into phases, each a communication step and a computation step of at most ten ops. `duplex_cost.py`
says how psi, the time of both micro-batches, and phi, which says how much of it may still overlap, follow from the phases.

    Q dominates Q'  <=>  state(Q) = state(Q'),  psi_Q <= psi_Q',  phi_Q <= phi_Q',  and one of the two is less
    theorem 1: some strategy of the least psi has no part that another dominates

`duplex_search.py` grows partial strategies from cut to cut and drops the dominated ones (figure 4). The paper's number of cuts
is exponential in the number of ops that may come next. Here:

    small steps   All cuts, and all partial strategies that are not dominated: the result is optimal (`exact = 1`).
    others        Cuts in program order, where an op may pass the one before it, and a beam of the partial strategies that
                  promise the least psi (`exact = 0`). One beam for each weight of communication in the estimate of the
                  seconds still to come (`cost_to_go.py`). The optimum of the sum at each weight is divided into phases as well, so
                  that the result is no worse in psi than it.

A step of the budget is one partial strategy that is grown by one op. Parts that can be switched off: `dominance` (both rules),
`times` (the rule by psi and psi + phi, which is not the paper's), `bound`, `guide` (the estimate).

Memory: where the strategy does not fit, homes that take more bytes than a threshold are forbidden if they have a smaller
one. The threshold is halved until the strategy fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import BlockArgument
from xdsl.utils.exceptions import PassFailedException

from ....ir.sharding import Sharding
from ...analysis.compute import local_bytes
from ...step.step_view import StepView
from ..eliminate import solve
from ..memory import StrategyMemory
from ..problem import Costs, Problem, Solution, States
from ..strategy_problem import StrategyProblem
from ..within_memory import Found, measured, size
from .cost_to_go import CostToGo, estimate, no_estimate, sum_of
from .duplex_cost import DuplexProblem, duplex_problem
from .duplex_search import Limits, Walk, Walked
from .interface import Effort, SearchTask

PARTS = frozenset({"dominance", "times", "bound", "guide"})
"""The parts that `without` may name."""

_WEIGHTS = (1.0, 0.3)
"""The weights of communication for which there is a beam."""

_BEAM, _AHEAD = 48, 2
"""The default width of a beam, and among how many ops it looks for the next."""

_EXACT_OPS, _EXACT = 24, 20_000
"""The most ops of a step that is small, and how many partial strategies are grown before it counts as large."""


def search(task: SearchTask) -> Found:
    """
    Return the strategy with the least psi that was found within memory.

    Its cost is psi. The lower bound is psi where the search was exact and memory did not bind. Otherwise it is the largest of
    two kinds: the optima of sums of computation and weighted communication, each divided by 1 + weight, and the optimum of
    computation alone.
    """
    if unknown := task.effort.without - PARTS:
        raise PassFailedException(
            f"pareto-dp has no part {', '.join(sorted(unknown))}; without= may name {', '.join(sorted(PARTS))}"
        )
    memory = StrategyMemory(task.view, task.cluster)
    problem, bound, least = task.free, None, np.inf
    while problem is not None:
        solution = _Search(duplex_problem(problem, task.view), task.effort).run()
        bound = solution.lower_bound if bound is None else bound
        found = measured(memory, problem, task.free, solution, bound)
        if found.peak_bytes <= task.limit:
            return replace(found, cost=solution.cost, lower_bound=min(bound, solution.cost))
        least = min(least, found.peak_bytes)
        problem = _with_smaller_homes(problem, task.view)
    raise PassFailedException(
        f"no strategy fits: the tightest found needs {size(least)} on a device that has {size(task.limit)},"
        f" {size(least - task.limit)} too much; use more devices, a smaller batch, or algorithm=eliminate, which may"
        " gather parameters again for backward"
    )


def _with_smaller_homes(problem: StrategyProblem, view: StepView) -> StrategyProblem | None:
    """Return the problem without homes of more than half of the bytes of the largest; None where all are smallest."""
    unary = list(problem.problem.unary)
    sizes: dict[int, Costs] = {}
    for node, decision in enumerate(problem.decisions):
        if isinstance(value := decision.subject, BlockArgument) and not decision.copy:
            homes = [home for home in decision.states if isinstance(home, Sharding)]
            held = np.array([float(local_bytes(value, home, view.mesh)) for home in homes])
            sizes[node] = np.where(np.isinf(unary[node]), np.nan, held)
    threshold = 0.5 * max((np.nanmax(s) for s in sizes.values() if np.nanmax(s) > np.nanmin(s)), default=0.0)
    for node, held in sizes.items():
        unary[node] = np.where(held <= max(threshold, np.nanmin(held)), unary[node], np.inf)
    return replace(problem, problem=Problem(tuple(unary), problem.problem.edges)) if threshold else None


@dataclass(frozen=True)
class _Strategy:
    """A complete strategy and its psi."""

    psi: float
    walked: Walked


class _Search:
    """The search for the least psi without regard to memory; one use."""

    def __init__(self, duplex: DuplexProblem, effort: Effort) -> None:
        self.duplex, self.effort = duplex, effort
        self.tally = Counter[str]()
        self.allowed = [np.flatnonzero(np.isfinite(costs)) for costs in duplex.comp]
        self.best = _Strategy(np.inf, Walked(None, (), False))
        self.bound = 2.0 * sum(float(costs.min()) for costs in duplex.comp)
        width = _BEAM if effort.budget is None else effort.budget // max(1, len(_WEIGHTS) * len(duplex.ops))
        self.beam = max(1, min(_BEAM, width))

    def run(self) -> Solution:
        """Return the best strategy of all walks."""
        order = _order(self.duplex)
        guides = [self._guided(weight, order) for weight in _WEIGHTS]
        for guide in guides:
            self._walk(guide, self.allowed, Limits(beam=self.beam, ahead=_AHEAD))
        exact = False
        if len(self.duplex.ops) <= _EXACT_OPS:
            left = _EXACT if self.effort.budget is None else self.effort.budget - self.tally["expanded"]
            exact = self._walk(guides[0], self.allowed, Limits(expansions=left)).complete
        assignment, phases = self.best.walked.assignment, self.best.walked.phases
        assert assignment is not None
        bound = self.best.psi if exact else min(self.bound, self.best.psi)
        self.tally.update(exact=int(exact), beam=0 if exact else self.beam, phases=len(phases))
        return Solution(assignment, self.best.psi, bound, dict(self.tally))

    def _guided(self, weight: float, order: Sequence[int]) -> CostToGo:
        """Return the estimate at a weight of communication, having tried the optimum of its sum."""
        model = sum_of(self.duplex, weight)
        optimum = solve(model)
        self.bound = max(self.bound, optimum.lower_bound / (1.0 + weight))
        guide = no_estimate(self.duplex) if "guide" in self.effort.without else estimate(model, order, weight)
        fixed = [optimum.assignment[node : node + 1] for node in range(len(self.duplex.comp))]
        self._walk(guide, fixed, Limits(beam=self.beam, ahead=_AHEAD))
        return guide

    def _walk(self, guide: CostToGo, allowed: Sequence[States], limits: Limits) -> Walked:
        """Walk over the cuts, and keep the strategy if it is the best so far."""
        without = self.effort.without
        limits = replace(
            limits,
            known=np.inf if "bound" in without else self.best.psi,
            by_costs="dominance" not in without,
            by_times=without.isdisjoint({"dominance", "times"}),
        )
        walked = Walk(self.duplex, guide, allowed, limits, self.tally).run()
        if walked.assignment is not None:
            psi = self.duplex.psi(walked.assignment, walked.phases)
            self.best = min(self.best, _Strategy(psi, walked), key=lambda strategy: strategy.psi)
        return walked


def _order(duplex: DuplexProblem) -> list[int]:
    """Return all nodes in the order of their decisions, where ops are done in program order."""
    order: dict[int, None] = {}
    for op in duplex.ops:
        order |= dict.fromkeys(node for t in duplex.by_use[op] for node in (t.source, t.target) if node != op)
        order[op] = None
    return list(order | dict.fromkeys(range(len(duplex.comp))))
