"""
The default search: the exact optimum of a pairwise model, with its proof.

1. Drop dominated states and eliminate nodes with at most two neighbours (`reduction.py`), as long as that
   lasts.
2. What remains falls into connected components. Where bucket elimination can afford one, it is solved
   (`bucket.py`).
3. Otherwise dual ascent gives a lower bound, and a floor under the cost of every state (`dual_ascent.py`).
   The few states per node with the lowest floors make a small problem, solved exactly, whose optimum is an
   upper bound.
4. States with floors above the upper bound go, and what remains starts again at 1; its dual ascent continues
   from where this one ended.
5. Where that takes nothing away, bucket elimination may cost more; after that, branch and bound.

Every step keeps an optimal assignment or proves that one at hand is optimal, so the result is exact unless
the limits end step 5 early; then the bound says by how much it may be off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from . import bucket
from .conflict import explain_conflict
from .dual_ascent import DualAscent
from .meter import Meter
from .problem import Costs, Infeasible, Problem, Solution
from .reduction import Eliminated, Graph, recover, reduce

ROUNDING = 1e-12
"""Error of a sum of costs, relative to the largest."""

PROGRESS = 0.9
"""Where bounds leave at most this share of the states, the rest starts over, else bounds improve first."""

BEAMS = (1.25, 2.0, 4.0)
"""States per node, on average, of the small problems that upper bounds come from."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What the search may spend; counts and not seconds, so that the same problem always gets the same answer.

    One bucket elimination keeps at most `entries` numbers and forms `cheap_work` without a try to do with
    less; all those that form more form `work` together. `sweeps` of dual ascent, one entry at least, go
    before each try to prune. What costs at most `allowance` more than an optimum is good enough: bounds
    need not come closer to the best that is known.
    """

    entries: int = 20_000_000
    cheap_work: int = 30_000_000
    work: int = 3_000_000_000
    sweeps: tuple[int, ...] = (45, 15, 15, 30)
    branches: int = 200
    allowance: float = 0.0


class LimitReached(RuntimeError):
    """The limits ended the search before it found any assignment."""


def solve(problem: Problem, *, tolerance: float = 1e-9, limits: Limits | None = None) -> Solution:
    """
    Return a cheapest assignment of `problem`.

    `tolerance` is relative: a bound drops a state only if that is worse than the best by more than it, so
    that rounding cannot drop an optimum. Raises Infeasible, naming nodes that conflict, where no assignment
    has finite cost, and LimitReached where `limits` left no time to find one.
    """
    search = _Search(problem, tolerance, limits or Limits())
    outcome = search.run()
    if outcome.cost == np.inf:
        if outcome.bound < np.inf:
            raise LimitReached(f"no assignment found within {search.limits}")
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


@dataclass(frozen=True, slots=True)
class _Outcome:
    """
    The best assignment found (original states by node; cost inf where there is none) and a bound.

    Every assignment costs at least the lesser of `bound` and the cutoff that was asked for.
    """

    cost: float
    bound: float
    chosen: dict[int, int]

    def settle(self, rest: _Outcome, ceiling: float = np.inf) -> _Outcome:
        """Return the better of two, where all that this one left open below `ceiling` was searched: `rest`."""
        cheaper = rest if rest.cost < self.cost else self
        return _Outcome(cheaper.cost, min(rest.bound, cheaper.cost, ceiling), cheaper.chosen)

    def at_least(self, bound: float) -> _Outcome:
        """Return this outcome, where all else that there is costs at least `bound`."""
        return _Outcome(self.cost, min(self.cost, bound), self.chosen)


_NOTHING = _Outcome(np.inf, np.inf, {})


class _Search:
    """One run of the search: its graph, its budget, and what it counts."""

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
        """Return the difference that `tolerance` allows at `cost`."""
        return self.tolerance * abs(cost) + ROUNDING * self.scale if np.isfinite(cost) else 0.0

    def ceiling(self, known: float) -> float:
        """Return the cost from which on nothing is worth finding, where one of `known` is."""
        return known + self.slack(known) - self.limits.allowance

    def run(self) -> _Outcome:
        """Solve the problem."""
        return self.minimise(self.graph, np.inf, "reduced")

    def minimise(self, graph: Graph, cutoff: float, step: str, start: DualAscent | None = None) -> _Outcome:
        """
        Return the optimum of `graph`, which is used up; assignments above `cutoff` need not be found.

        `start` has the bounds of a graph that this one was pruned from.
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
        """Return the optimum of a connected graph that `reduce` cannot shrink; `graph` stays as it is."""
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
            beam, found = self.by_restriction(graph, floors)
            best = min(best, found, key=lambda outcome: outcome.cost)
            ceiling = self.ceiling(min(best.cost, cutoff))
            if max(beam, ascent.bound) > ceiling:
                return best.at_least(max(beam, ascent.bound))
            pruned = graph.below(floors, ceiling)
            if pruned.total_states() <= PROGRESS * graph.total_states():
                return best.settle(self.minimise(pruned, min(best.cost, cutoff), "pruned", ascent), ceiling)
        exact = self.by_buckets(graph, self.work)
        return exact or best.settle(self.by_branching(graph, ascent, min(best.cost, cutoff)))

    def by_buckets(self, graph: Graph, work: int) -> _Outcome | None:
        """Return the optimum of `graph` by bucket elimination, or None where that takes more than `work`."""
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

        Tries wider beams until there is such an assignment; stops where elimination cannot afford one.
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
        """Return the optimum of `graph`, which is used up, or None where bounds would be needed."""
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
        """Return the optimum of `graph` by trying each state of one node; `cutoff` as in `minimise`."""
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
        """Return `outcome` with the nodes of `trail` assigned too."""
        if outcome.cost < np.inf:
            with self.meter.timed("recover"):
                recover(graph.store, trail, outcome.chosen)
        return outcome
