"""
`algorithm=pareto-dp`: HiDup's search for a strategy of duplex training (HiDup, section 4).

A strategy divides the step into phases. A phase is a communication step and then a computation step of at most ten ops.
`duplex_cost.py` computes psi, the time of both micro-batches, and phi: the last -phi of psi may overlap the next phase.

    Q dominates Q'  <=>  state(Q) = state(Q'), psi_Q <= psi_Q', phi_Q <= phi_Q', and one of them is less
    theorem 1: a strategy of the least psi has no part that another dominates

(With ties it may have a dominated part, but then another strategy of the same psi has none.)

`duplex_search.py` grows partial strategies from cut to cut and drops dominated ones (figure 4). The number of cuts is
exponential in the number of ops that may be next. So there are two modes:

    small steps   All cuts, and every partial strategy that is not dominated. The result is optimal: `exact = 1`.
    large steps   Cuts in one order of the ops, except that an op may pass the op before it, and a beam of the partial
                  strategies with the least expected psi. There is one beam for each of two orders (program order, and
                  updates soon after their gradients) and of two weights of communication in the estimate of the
                  remaining seconds (`cost_to_go.py`). The optimum of the sum at each weight is also divided into
                  phases, so the result is at least as good as the best division that a beam finds.

Also `exact = 1` if psi meets its lower bound. A step of the budget is one partial strategy that grows by one op.
Parts that `without` switches off: `dominance` (both rules), `times` (the rule by psi and psi + phi, which is stronger
than the paper's), `bound` (dropping partial strategies that cannot beat the best), `guide` (the estimate).

Memory: if the strategy does not fit, states with more than half of the bytes of the largest state are forbidden, unless
a decision has no smaller state. These are states of homes and copies of arguments if arguments take half of the peak,
else states of ops and of copies of their results. This repeats until the strategy fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import BlockArgument

from ....dialects.compute import ComputeOp
from ....ir.sharding import Sharding
from ....ir.signatures import Signature
from ...analysis.compute import local_bytes
from ...step.step_view import StepView
from ..eliminate import solve
from ..memory import StrategyMemory
from ..problem import Costs, Infeasible, Problem, Solution, States
from ..strategy_problem import Decision, StrategyProblem
from ..within_memory import ConstrainedSolution, measured, nothing_fits, require_arguments_fit
from .cost_to_go import CostToGo, estimate, no_estimate, sum_of
from .duplex_cost import MOST_OPS, DuplexProblem, duplex_problem
from .duplex_search import ROUNDING, CutWalk, Walked, WalkLimits
from .interface import Effort, SearchTask

PARTS = frozenset({"dominance", "times", "bound", "guide"})
"""The parts that `without` may name."""

_WEIGHTS = (1.0, 0.6)
"""The weights of communication; each weight has its beams."""

_BEAM, _AHEAD = 32, 2
"""The default width of a beam, and the number of ops among which it chooses the next one."""

_EXACT_OPS, _EXACT = 24, 20_000
"""The maximum number of ops of a small step, and of partial strategies to grow before a step counts as large."""


def search(task: SearchTask) -> ConstrainedSolution:
    """
    Return the strategy with the least psi that was found within memory.

    Its cost is psi. The lower bound is psi if the search was exact and memory did not bind. Otherwise it is the largest
    of these bounds: the optimum of computation alone, and the optima of the sums of computation and weighted
    communication, divided by 1 + weight.
    """
    require_arguments_fit(task.view, task.free, task.limit)
    memory = StrategyMemory(task.view, task.cluster)
    problem, bound, least = task.free, None, np.inf
    while problem is not None:
        try:
            solution = _LeastPsiSearch(duplex_problem(problem, task.view), task.effort).run()
        except Infeasible:
            if problem is task.free:
                raise
            break
        bound = solution.lower_bound if bound is None else bound
        candidate = measured(memory, problem, task.free, solution, bound)
        if candidate.peak_bytes <= task.limit:
            return replace(candidate, cost=solution.cost, lower_bound=min(bound, solution.cost))
        least = min(least, candidate.peak_bytes)
        chosen = [(d, d.states[int(x)]) for d, x in zip(problem.decisions, solution.assignment, strict=True)]
        # Count the bytes of all arguments at home on a device.
        kept = sum(_bytes(d, x, task.view) for d, x in chosen if isinstance(d.subject, BlockArgument) and not d.copy)
        of_ops = kept < 0.5 * candidate.peak_bytes
        while problem is not None and np.isfinite(problem.problem.cost(solution.assignment)):
            problem = _with_less(problem, task.view, of_ops) or _with_less(problem, task.view, not of_ops)
    raise nothing_fits(least, task.limit)


def _with_less(problem: StrategyProblem, view: StepView, of_ops: bool) -> StrategyProblem | None:
    """
    Return the problem with fewer bytes per device, or None if there cannot be fewer.

    States with more than half of the bytes of the largest state are forbidden, unless a decision has no smaller state.

    Args:
        of_ops: whether to restrict ops and copies of their results, or homes and copies of arguments.
    """
    unary = list(problem.problem.unary)
    sizes: dict[int, Costs] = {}
    for node, decision in enumerate(problem.decisions):
        if isinstance(decision.subject, BlockArgument) != of_ops:
            held = np.array([_bytes(decision, state, view) for state in decision.states])
            sizes[node] = np.where(np.isinf(unary[node]), np.nan, held)
    threshold = 0.5 * max((np.nanmax(s) for s in sizes.values() if np.nanmax(s) > np.nanmin(s)), default=0.0)
    for node, held in sizes.items():
        unary[node] = np.where(held <= max(threshold, np.nanmin(held)), unary[node], np.inf)
    return replace(problem, problem=Problem(tuple(unary), problem.problem.edges)) if threshold else None


def _bytes(decision: Decision, state: Signature | Sharding, view: StepView) -> float:
    """Return the bytes on a device of a decision's values in a state."""
    if isinstance(op := decision.subject, ComputeOp):
        assert isinstance(state, Signature)
        pairs = zip((*op.args, *op.outs), (*state.operands, *state.results), strict=True)
        return sum(float(local_bytes(value, sharding, view.mesh)) for value, sharding in pairs)
    assert isinstance(state, Sharding)
    return float(local_bytes(op, state, view.mesh))


@dataclass(frozen=True)
class _DividedStrategy:
    """A complete strategy, divided into phases, and its psi."""

    psi: float
    walked: Walked


class _LeastPsiSearch:
    """Searches for the least psi without regard to memory; one use."""

    def __init__(self, duplex: DuplexProblem, effort: Effort) -> None:
        self.duplex, self.effort = duplex, effort
        self.tally = Counter[str]()
        self.allowed = [np.flatnonzero(np.isfinite(costs.sum(axis=1))) for costs in duplex.comp]
        self.best = _DividedStrategy(np.inf, Walked(None, (), False))
        self.bound = sum(float(costs.sum(axis=1).min()) for costs in duplex.comp)
        self.orders = dict.fromkeys((duplex.ops, _updates_early(duplex)))
        share = 4 * len(_WEIGHTS) * len(self.orders) * max(1, len(duplex.ops))
        self.beam = _BEAM if effort.budget is None else max(1, min(_BEAM, effort.budget // share))

    def run(self) -> Solution:
        """Return the best strategy of all walks."""
        guides = [self._guide(weight) for weight in _WEIGHTS]
        for guide in guides:
            for ops in self.orders:
                if not self._is_proven():
                    self._walk(replace(self.duplex, ops=ops), guide, self.allowed, WalkLimits(self.beam, _AHEAD))
        if not self._is_proven() and len(self.duplex.ops) <= _EXACT_OPS:
            left = _EXACT if self.effort.budget is None else self.effort.budget - self.tally["expanded"]
            if self._walk(self.duplex, guides[0], self.allowed, WalkLimits(expansions=left)).complete:
                self.bound = self.best.psi
        assignment, phases = self.best.walked.assignment, self.best.walked.phases
        assert assignment is not None
        exact = self._is_proven()
        self.tally.update(exact=int(exact), beam=0 if exact else self.beam, phases=len(phases))
        return Solution(assignment, self.best.psi, min(self.bound, self.best.psi), dict(self.tally))

    def _is_proven(self) -> bool:
        """Whether the lower bound meets psi, except for rounding."""
        return self.best.psi <= self.bound * (1.0 + ROUNDING)

    def _guide(self, weight: float) -> CostToGo:
        """Return the estimate at a weight of communication, after dividing the optimum of its sum into phases."""
        model = sum_of(self.duplex, weight)
        optimum = solve(model)
        self.bound = max(self.bound, optimum.lower_bound / (1.0 + weight))
        guided = "guide" not in self.effort.without
        guide = estimate(model, _order(self.duplex), weight) if guided else no_estimate(self.duplex)
        fixed = [optimum.assignment[node : node + 1] for node in range(len(self.duplex.comp))]
        for ops in self.orders:
            self._walk(replace(self.duplex, ops=ops), guide, fixed, WalkLimits(self.beam, _AHEAD))
        return guide

    def _walk(self, duplex: DuplexProblem, guide: CostToGo, allowed: Sequence[States], limits: WalkLimits) -> Walked:
        """Walk over the cuts, and keep the strategy if it is the best so far."""
        without = self.effort.without
        limits = replace(
            limits,
            known=np.inf if "bound" in without else self.best.psi,
            by_costs="dominance" not in without,
            by_times=without.isdisjoint({"dominance", "times"}),
        )
        walked = CutWalk(duplex, guide, allowed, limits, self.tally).run()
        if walked.assignment is not None:
            psi = self.duplex.psi(walked.assignment, walked.phases)
            self.best = min(self.best, _DividedStrategy(psi, walked), key=lambda strategy: strategy.psi)
        return walked


def _order(duplex: DuplexProblem) -> list[int]:
    """Return all nodes in the order of their decisions, with ops in program order."""
    order: dict[int, None] = {}
    for op in duplex.ops:
        order |= dict.fromkeys(node for t in duplex.by_use[op] for node in (t.source, t.target) if node != op)
        order[op] = None
    return list(order | dict.fromkeys(range(len(duplex.comp))))


def _updates_early(duplex: DuplexProblem) -> tuple[int, ...]:
    """Return the ops in an order that runs each update early: over `MOST_OPS` ops after its operands were computed."""
    ops: list[int] = []
    place: dict[int, int] = {}
    waiting = [op for op in duplex.ops if op in duplex.updates]
    for op in [op for op in duplex.ops if op not in duplex.updates]:
        place[op] = len(ops)
        ops.append(op)
        for update in tuple(waiting):
            if all(before in place and place[before] + MOST_OPS < len(ops) for before in duplex.operands[update]):
                waiting.remove(update)
                place[update] = len(ops)
                ops.append(update)
    return (*ops, *waiting)
