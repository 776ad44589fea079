"""
The default search: find the exact optimum of a pairwise model, and prove it.

1. Drop dominated states and eliminate nodes with at most two neighbours (`reduction.py`) while there are any.
2. The remaining graph falls into connected components. A component that bucket elimination can afford is solved
   (`bucket.py`).
3. For other components, dual ascent gives a lower bound on the optimum, and a floor, which is a lower bound on the cost
   of assignments with a given state (`dual_ascent.py`). The few states per node with the lowest floors form a small
   problem, which is solved exactly and gives an upper bound.
4. States with floors above the upper bound are dropped, and the search continues with step 1; the next dual ascent
   starts from the messages of this one.
5. If no states can be dropped, bucket elimination gets a larger budget; if that fails, branch and bound follows.

Every step keeps an optimal assignment or proves that the best one found is optimal. So the result is exact unless
the limits end step 5 early; then the bound limits its distance from the optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from . import bucket
from .conflict import explain_conflict
from .dual_ascent import DualAscent
from .meter import Meter
from .problem import Costs, Infeasible, Problem, Solution, States
from .reduction import Eliminated, Graph, recover, reduce

ROUNDING = 1e-12
"""The error of a sum of costs, relative to the largest cost."""

PROGRESS = 0.9
"""If bounds leave at most this fraction of the states, the search restarts on them; else the bounds are improved."""

BEAMS = (1.25, 2.0, 4.0)
"""The average number of states per node in the small problems that give upper bounds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    The budget of a search, in counts and not in seconds, so that equal problems get equal answers.

    A bucket elimination stores at most `entries` numbers. One that computes at most `cheap_work` numbers runs at once;
    all others together compute at most `work`. Before each attempt to prune, dual ascent runs for the next number of
    `sweeps`, which has at least one entry. A solution that costs at most `allowance` more than an optimum is good
    enough: bounds may stay that far below the best cost.
    """

    entries: int = 20_000_000
    cheap_work: int = 30_000_000
    work: int = 3_000_000_000
    sweeps: tuple[int, ...] = (45, 15, 15, 30)
    branches: int = 200
    allowance: float = 0.0


class LimitReached(RuntimeError):
    """The limits, or the states to search among, left no assignment to find."""


def solve(
    problem: Problem,
    *,
    tolerance: float = 1e-9,
    limits: Limits | None = None,
    among: Sequence[States] | None = None,
    known: States | None = None,
) -> Solution:
    """
    Return a cheapest assignment of `problem`.

    `tolerance` is relative: a state is dropped only if its bound exceeds the best cost by more than the tolerance, so
    that rounding cannot drop an optimum. Raises Infeasible, naming nodes that conflict, if no assignment has finite
    cost, and LimitReached if `limits` ended the search before it found one.

    Args:
        among: the states that each node may have (ascending); by default all. The result and its lower bound then hold
            for assignments of these states, and LimitReached is raised if none has finite cost.
        known: an assignment (of states in `among`, if both are given), which is the result if no cheaper one is found.
            The cheaper it is, the more states are dropped early, so the search is faster and finds more in its limits.
    """
    search = _Search(problem, tolerance, limits or Limits())
    if among is not None:
        search.graph.keep({node: search.graph.store.intern(states) for node, states in enumerate(among)})
    cutoff = np.inf if known is None else problem.cost(known)
    outcome = search.run(cutoff)
    if known is not None and np.isfinite(cutoff) and outcome.cost >= cutoff:
        return Solution(known, cutoff, min(outcome.bound, cutoff), search.meter.report(search.graph.store.computed))
    if outcome.cost == np.inf:
        if outcome.bound < np.inf or among is not None:
            where = "" if among is None else " among the given states"
            raise LimitReached(f"no assignment found{where} within {search.limits}")
        raise explain_conflict(problem, lambda part: _Search(part, 0.0, search.limits).run().bound == np.inf)
    assignment = np.array([outcome.chosen[node] for node in range(len(problem.unary))], dtype=np.int64)
    cost = problem.cost(assignment)
    if abs(cost - outcome.cost) > search.slack(cost):
        raise ArithmeticError(
            f"the assignment costs {cost!r}, elimination computed {outcome.cost!r}: costs span too many"
            f" orders of magnitude for tolerance {tolerance}; forbid choices by inf and not by large numbers"
        )
    bound = cost if outcome.bound >= outcome.cost else min(outcome.bound, cost)
    return Solution(assignment, cost, bound, search.meter.report(search.graph.store.computed))


def combined(problem: Problem, assignments: Sequence[States], limits: Limits) -> States:
    """
    Return the cheapest assignment found that gives each node a state from one of `assignments`.

    It costs no more than the cheapest of them. Two assignments that are good in different places combine to one that is
    good in both (the fusion move of Lempitsky et al., "Fusion moves for Markov random field optimization", 2010).
    """
    best = min(assignments, key=problem.cost)
    try:
        among = [np.unique(states) for states in zip(*assignments, strict=True)]
        found = solve(problem, limits=limits, among=among)
    except LimitReached:
        return best
    return found.assignment if found.cost < problem.cost(best) else best


@dataclass(frozen=True, slots=True)
class _Outcome:
    """
    The best assignment found (original states by node; cost inf if there is none) and a bound.

    Every assignment costs at least the lesser of `bound` and the requested cutoff.
    """

    cost: float
    bound: float
    chosen: dict[int, int]

    def settle(self, rest: _Outcome, ceiling: float = np.inf) -> _Outcome:
        """Combine with `rest`, the outcome of a search of all states that may cost less than `ceiling`."""
        cheaper = rest if rest.cost < self.cost else self
        return _Outcome(cheaper.cost, min(rest.bound, cheaper.cost, ceiling), cheaper.chosen)


_NOTHING = _Outcome(np.inf, np.inf, {})


class _Search:
    """One run of the search: its graph, its remaining budget and its statistics."""

    def __init__(self, problem: Problem, tolerance: float, limits: Limits) -> None:
        self.meter = Meter()
        with self.meter.timed("build"):
            self.graph = Graph.of(problem)
        self.meter.count("given", self.graph)
        self.limits = limits
        self.work = limits.work
        self.branches = limits.branches
        self.tolerance = tolerance
        self.scale = self.graph.store.magnitude()

    def slack(self, cost: float) -> float:
        """Return the difference that `tolerance` permits at `cost`."""
        return self.tolerance * abs(cost) + ROUNDING * self.scale if np.isfinite(cost) else 0.0

    def ceiling(self, known: float) -> float:
        """Return the cost above which an assignment is not worth finding, given one of cost `known`."""
        return known + self.slack(known) - self.limits.allowance

    def run(self, cutoff: float = np.inf) -> _Outcome:
        """Solve the problem; assignments above `cutoff` may be missed."""
        return self.minimise(self.graph, cutoff, "reduced")

    def minimise(self, graph: Graph, cutoff: float, step: str, start: DualAscent | None = None) -> _Outcome:
        """
        Return the optimum of `graph`, which is consumed; assignments above `cutoff` may be missed.

        `start` has the bounds of a larger graph, from which this one was pruned.
        """
        try:
            with self.meter.timed("reduce"):
                trail = reduce(graph)
        except Infeasible:
            return _NOTHING
        self.meter.count(step, graph)
        components = graph.components()
        remaining = cutoff - graph.offset if len(components) == 1 else np.inf
        parts = [self.minimise_core(graph.part(component), remaining, start) for component in components]
        cost = graph.offset + sum(part.cost for part in parts)
        bound = graph.offset + sum(part.bound for part in parts)
        chosen = {node: state for part in parts for node, state in part.chosen.items()}
        return self.recovered(graph, trail, _Outcome(cost, bound, chosen))

    def minimise_core(self, graph: Graph, cutoff: float, start: DualAscent | None) -> _Outcome:
        """Return the optimum of a connected graph that `reduce` cannot shrink; `graph` is not changed."""
        exact = self.by_buckets(graph, self.limits.cheap_work)
        if exact is not None:
            return exact
        best = _NOTHING
        with self.meter.timed("dual_ascent"):
            ascent = DualAscent(graph, start)
        for sweeps in self.limits.sweeps:
            with self.meter.timed("dual_ascent"):
                ascent.sweep(sweeps)
            floors = ascent.floors()
            beam, restricted = self.by_restriction(graph, floors)
            best = min(best, restricted, key=lambda outcome: outcome.cost)
            ceiling = self.ceiling(min(best.cost, cutoff))
            if max(beam, ascent.bound) > ceiling:
                return replace(best, bound=min(best.cost, max(beam, ascent.bound)))
            pruned = graph.below(floors, ceiling)
            if pruned.total_states() <= PROGRESS * graph.total_states():
                return best.settle(self.minimise(pruned, min(best.cost, cutoff), "pruned", ascent), ceiling)
        exact = self.by_buckets(graph, self.work)
        return exact or best.settle(self.by_branching(graph, ascent, min(best.cost, cutoff)))

    def by_buckets(self, graph: Graph, work: int) -> _Outcome | None:
        """Return the optimum of `graph` by bucket elimination, or None if that takes more than `work`."""
        with self.meter.timed("plan"):
            plan = bucket.plan(graph, self.limits.entries, work)
        if plan is None:
            return None
        if plan.work > self.limits.cheap_work:
            self.work -= plan.work
        with self.meter.timed("buckets"):
            cost, chosen = bucket.execute(plan, graph)
        return _Outcome(cost, cost, chosen)

    def by_restriction(self, graph: Graph, floors: Mapping[int, Costs]) -> tuple[float, _Outcome]:
        """
        Return a beam and the best assignment whose states all have floors within it.

        Tries wider beams until there is such an assignment, or until elimination is too expensive.
        """
        ordered = np.sort(np.concatenate(list(floors.values())))
        for states in BEAMS:
            beam = float(ordered[min(int(states * len(floors)), len(ordered) - 1)])
            outcome = self.cheaply(graph.below(floors, beam))
            if outcome is None:
                break
            if outcome.cost < np.inf:
                return beam, outcome
        return -np.inf, _NOTHING

    def cheaply(self, graph: Graph) -> _Outcome | None:
        """Return the optimum of `graph`, which is consumed, or None if that takes more than `cheap_work`."""
        try:
            with self.meter.timed("reduce"):
                trail = reduce(graph)
        except Infeasible:
            return _NOTHING
        core = self.by_buckets(graph, self.limits.cheap_work)
        if core is None or core.cost == np.inf:
            return core
        return self.recovered(graph, trail, _Outcome(core.cost + graph.offset, core.bound + graph.offset, core.chosen))

    def by_branching(self, graph: Graph, ascent: DualAscent, cutoff: float) -> _Outcome:
        """Return the optimum of `graph` by branching on the states of one node; `cutoff` as in `minimise`."""
        floors = ascent.floors()
        node = min(graph.unary, key=lambda node: (graph.size(node), -len(graph.adjacency[node]), node))
        best, bound = _NOTHING, np.inf
        for state in np.argsort(floors[node], kind="stable"):
            if not self.branches:
                bound = min(bound, float(floors[node][state]))
                continue
            self.branches -= 1
            branch = graph.part(graph.unary)
            branch.keep({node: graph.store.intern(np.array([state]))})
            outcome = self.minimise(branch, min(cutoff, best.cost), "branched", ascent)
            best = min(best, outcome, key=lambda outcome: outcome.cost)
            bound = min(bound, outcome.bound)
        return _Outcome(best.cost, min(bound, best.cost), best.chosen)

    def recovered(self, graph: Graph, trail: list[Eliminated], outcome: _Outcome) -> _Outcome:
        """Return `outcome` with states also for the eliminated nodes of `trail`."""
        if outcome.cost < np.inf:
            with self.meter.timed("recover"):
                recover(graph.store, trail, outcome.chosen)
        return outcome
