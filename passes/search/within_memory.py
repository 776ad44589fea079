"""The cheapest strategy that fits in memory, by raising the price of bytes at the points where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from xdsl.ir import BlockArgument, Operation
from xdsl.utils.exceptions import PassFailedException

from ...ir.cluster import Cluster
from ...ir.sharding import Sharding
from ..analysis.compute import local_bytes
from ..step.step_view import StepView
from .decided import strategy_of
from .memory import Prices, Strategy, StrategyMemory
from .problem import Solution
from .strategy_problem import StrategyProblem

HEADROOM = 0.1
"""The part of a device's memory that the search leaves to the buffers of collectives."""

_ROUNDS = 12
"""How often prices are tried after the first that does not fit."""

_PATIENCE, _STALL = 3, 0.999
"""How many prices in a row may bring the least peak no lower than this part of it before nothing is taken to fit."""

_CLOSE = 0.01
"""A gap, relative to the cost, at which no more prices are tried."""

_ALLOWANCE = 0.002
"""How much more than the optimum at some prices a strategy may cost, relative to the cheapest of all."""

Build = Callable[[Prices], StrategyProblem]
Solve = Callable[[StrategyProblem, float], Solution]
"""Solves a problem; the seconds are how far from its optimum the solution may be."""


@dataclass(frozen=True)
class ConstrainedSolution:
    """
    A strategy: its problem and states, its cost and a lower bound of any that fits (seconds), its peak
    (bytes) and the op where that is.
    """

    problem: StrategyProblem
    solution: Solution
    cost: float
    lower_bound: float
    peak_bytes: float
    peak_op: Operation
    strategy: Strategy


def solve_within(view: StepView, cluster: Cluster, build: Build, solve: Solve, limit: float) -> ConstrainedSolution:
    """
    The cheapest strategy found whose memory stays under `limit` bytes on every device.

    Exact where the unconstrained optimum fits; else the gap between `cost` and `lower_bound` says how far
    from the optimum it may be. PassFailedException, with the amount that is missing, where nothing was found
    that fits.
    """
    free = build(Prices())
    require_arguments_fit(view, free, limit)
    memory = StrategyMemory(view, cluster)
    first = measured(memory, free, free, solve(free, 0.0), bound=None)
    if first.peak_bytes <= limit:
        return first
    return _PriceSearch(view, memory, build, solve, limit, free, first).run()


def require_arguments_fit(view: StepView, free: StrategyProblem, limit: float) -> None:
    """Raise PassFailedException where the arguments alone exceed `limit` bytes, however finely they are split."""
    if (least := _least_kept(view, free)) > limit:
        raise PassFailedException(
            "no strategy fits: the arguments of the step alone (parameters, optimizer states, batch), split as"
            f" finely as possible, need {_size(least)} on a device that has {_size(limit)}, {_size(least - limit)} too"
            " much; use more devices or a smaller model"
        )


def nothing_fits(least: float, limit: float) -> PassFailedException:
    """Return the error for a search whose tightest strategy needs `least` bytes, more than `limit`."""
    return PassFailedException(
        f"no strategy fits: the tightest found needs {_size(least)} on a device that has {_size(limit)},"
        f" {_size(least - limit)} too much; use more devices or a smaller batch"
    )


class _PriceSearch:
    """The search for the lowest prices at which the strategy fits; one use."""

    def __init__(
        self,
        view: StepView,
        memory: StrategyMemory,
        build: Build,
        solve: Solve,
        limit: float,
        free: StrategyProblem,
        first: ConstrainedSolution,
    ) -> None:
        self.memory, self.build, self.solve = memory, build, solve
        self.limit, self.free, self.first = limit, free, first
        self.position = {op: i for i, op in enumerate(view.func.body.block.ops)}
        self.points: list[int] = [self.position[first.peak_op]]
        self.best: ConstrainedSolution | None = None
        self.bound = first.lower_bound
        self.least = first.peak_bytes

    def run(self) -> ConstrainedSolution:
        low, high, stalled = 0.0, None, 0
        price = max(self.first.cost, 1e-9) / self.limit
        for _ in range(_ROUNDS):
            least = self.least
            tried = self._try(price)
            stalled = stalled + 1 if self.least > _STALL * least else 0
            if self.best is None and stalled > _PATIENCE:
                break
            if tried.peak_bytes <= self.limit:
                high = price
            elif self._new_point(tried):
                continue
            else:
                low = price
            price = price * 8 if high is None else (low + high) / 2
            if self.best is not None and self.best.cost - self.bound <= _CLOSE * self.best.cost:
                break
        if self.best is None:
            raise nothing_fits(self.least, self.limit)
        return ConstrainedSolution(
            self.best.problem,
            self.best.solution,
            self.best.cost,
            min(self.bound, self.best.cost),
            self.best.peak_bytes,
            self.best.peak_op,
            self.best.strategy,
        )

    def _try(self, price: float) -> ConstrainedSolution:
        prices = Prices({point: price / len(self.points) for point in self.points})
        problem = self.build(prices)
        solution = self.solve(problem, _ALLOWANCE * self.first.cost)
        self.bound = max(self.bound, solution.lower_bound - prices.total * self.limit)
        found = measured(self.memory, problem, self.free, solution, bound=self.bound)
        self.least = min(self.least, found.peak_bytes)
        if found.peak_bytes <= self.limit and (self.best is None or found.cost < self.best.cost):
            self.best = found
        return found

    def _new_point(self, found: ConstrainedSolution) -> bool:
        """Add the point where `found` peaks to the priced ones; False where it is priced already."""
        point = self.position[found.peak_op]
        if point in self.points or len(self.points) >= 4:
            return False
        self.points.append(point)
        return True


def _least_kept(view: StepView, problem: StrategyProblem) -> float:
    """The bytes that no strategy can do without: those of the arguments, each in its smallest parts."""
    kept = 0.0
    for decision in problem.decisions:
        value = decision.subject
        if isinstance(value, BlockArgument) and not decision.copy:
            forms = (form for form in decision.states if isinstance(form, Sharding))
            kept += min(local_bytes(value, form, view.mesh) for form in forms)
    return kept


def measured(
    memory: StrategyMemory,
    problem: StrategyProblem,
    free: StrategyProblem,
    solution: Solution,
    bound: float | None,
) -> ConstrainedSolution:
    """
    Return a solution as a strategy, with its seconds and its peak of memory.

    The strategy saves memory if `problem` differs from `free`, the problem without prices or limits.

    Args:
        bound: a lower bound of every strategy that fits; by default the bound of the solution.
    """
    strategy = strategy_of(problem, solution, saves_memory=problem is not free)
    ops, held = memory.over_time(strategy)
    at = int(held.max(axis=1).argmax())
    cost = solution.cost if problem is free else unpriced_cost(problem, free, solution)
    lower = solution.lower_bound if bound is None else bound
    return ConstrainedSolution(problem, solution, cost, lower, float(held[at].max()), ops[at], strategy)


def unpriced_cost(priced: StrategyProblem, free: StrategyProblem, solution: Solution) -> float:
    """
    The seconds of a strategy without what its bytes were charged: its cost in the problem without prices.

    Regathering, which is never worthwhile there, is charged by the second resharding that it takes.
    """
    states: list[int] = []
    for decision, plain, state in zip(priced.decisions, free.decisions, solution.assignment, strict=True):
        states.append(plain.states.index(decision.states[int(state)]))  # pyright: ignore[reportArgumentType]
    total = free.problem.cost(np.array(states))
    for edge in free.problem.edges:
        decision, plain = priced.decisions[edge.v], free.decisions[edge.v]
        again = decision.copy and decision.regather and decision.regather[int(solution.assignment[edge.v])]
        if again and not any(plain.regather):
            total += float(edge.table[states[edge.u], states[edge.v]])
    return total


def _size(count: float) -> str:
    if count < 2**20:
        return f"{count:.0f} bytes"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"
