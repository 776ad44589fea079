"""Find the cheapest strategy that fits in memory: raise the price of bytes at the points where memory is exceeded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from ...ir.cluster import Cluster
from ...ir.sharding import Sharding
from ..analysis.compute import local_bytes
from ..step.step_view import StepView
from .decided import strategy_of
from .memory import Lifetimes, Prices, Strategy, StrategyMemory
from .objective import BatchLoop
from .problem import Problem, Solution
from .strategy_problem import StrategyProblem

HEADROOM = 0.1
"""The fraction of a device's memory that the search reserves for the buffers of collectives."""

_ROUNDS = 12
"""The number of prices to try after the first strategy that does not fit."""

_PATIENCE, _STALL = 3, 0.999
"""More than `_PATIENCE` prices in a row that leave the least peak above `_STALL` of its former value are a stall."""

_STEP, _LEAP = 8.0, 8.0**4
"""Factors between prices: the usual one, and one after a stall, when splitting costs far more than the free optimum."""

_CLOSE = 0.01
"""The relative gap between cost and bound that ends the search for prices."""

_ALLOWANCE = 0.002
"""The allowed distance of a strategy from the optimum at given prices, relative to the cost of the free optimum."""

Build = Callable[[Prices], StrategyProblem]
Solve = Callable[[StrategyProblem, float, Solution | None], Solution]
"""
Solves a problem. The second argument is the allowed distance from the optimum, in seconds. The third is a solution that
a longer search should improve if it may be farther from the optimum, or None.
"""


@dataclass(frozen=True)
class ConstrainedSolution:
    """
    A strategy: its problem and states, its cost and a lower bound on the cost of any that fits (seconds), its peak
    memory (bytes) and the op at the peak.
    """

    problem: StrategyProblem
    solution: Solution
    cost: float
    lower_bound: float
    peak_bytes: float
    peak_op: Operation
    strategy: Strategy


def solve_within(
    view: StepView,
    cluster: Cluster,
    build: Build,
    solve: Solve,
    limit: float,
    loop: BatchLoop | None = None,
    worth: float = inf,
) -> ConstrainedSolution:
    """
    Return the cheapest strategy found that needs at most `limit` bytes on every device.

    If the optimum without memory limit fits, the result is exact; else it is at most `cost - lower_bound` from the
    optimum. Raise PassFailedException, with the number of missing bytes, if no strategy was found that fits.

    Args:
        loop: parts into which the batch will be cut, if it will be.
        worth: cost above which strategies are of no interest, in seconds; if every strategy that fits costs more, the
            search fails.
    """
    free = build(Prices())
    require_arguments_fit(view, free, limit)
    memory = StrategyMemory(view, cluster, loop)
    first = measured(memory, free, free, solve(free, 0.0, None), bound=None)
    if first.peak_bytes <= limit:
        better = measured(memory, free, free, solve(free, 0.0, first.solution), bound=None)
        return better if better.peak_bytes <= limit else first
    return _PriceSearch(view, memory, build, solve, limit, free, first, worth).run()


def require_arguments_fit(view: StepView, free: StrategyProblem, limit: float) -> None:
    """Raise PassFailedException if the arguments alone exceed `limit` bytes, however finely they are split."""
    # Every strategy needs these bytes for the arguments, each in its smallest shards.
    least = 0.0
    for decision in free.decisions:
        value = decision.subject
        if isinstance(value, BlockArgument) and not decision.copy:
            forms = (form for form in decision.states if isinstance(form, Sharding))
            least += min(local_bytes(value, form, view.mesh) for form in forms)
    if least > limit:
        raise PassFailedException(
            "no strategy fits: the arguments of the step alone (parameters, optimizer states, batch), split as"
            f" finely as possible, need {_size(least)} on a device that has {_size(limit)}, {_size(least - limit)} too"
            " much; use more devices or a smaller model"
        )


def nothing_fits(least: float, limit: float) -> PassFailedException:
    """Return the error for a search whose smallest strategy needs `least` bytes, more than `limit`."""
    return PassFailedException(
        f"no strategy fits: the tightest found needs {_size(least)} on a device that has {_size(limit)},"
        f" {_size(least - limit)} too much; use more devices or a smaller batch"
    )


@dataclass(frozen=True)
class _AtPrice:
    """A price (seconds per byte) and the strategy found there, or None for the free optimum."""

    price: float
    found: ConstrainedSolution | None


class _PriceSearch:
    """Searches for the lowest prices whose strategy fits; one use."""

    def __init__(
        self,
        view: StepView,
        memory: StrategyMemory,
        build: Build,
        solve: Solve,
        limit: float,
        free: StrategyProblem,
        first: ConstrainedSolution,
        worth: float,
    ) -> None:
        self.memory, self.build, self.solve = memory, build, solve
        self.limit, self.free, self.first, self.worth = limit, free, first, worth
        self.position = {op: i for i, op in enumerate(view.func.body.block.ops)}
        self.points: list[int] = [self.position[first.peak_op]]
        self.best: ConstrainedSolution | None = None
        self.bound = first.lower_bound
        self.least = first.peak_bytes
        self.allowance = _ALLOWANCE * first.cost

    def run(self) -> ConstrainedSolution:
        """Return the best strategy; raise PassFailedException if no price has one that fits."""
        low, high, stalled = _AtPrice(0.0, None), None, 0
        price = max(self.first.cost, 1e-9) / self.limit
        start, its_prices = self.first, Prices()
        for _ in range(_ROUNDS):
            least = self.least
            prices = Prices({point: price / len(self.points) for point in self.points})
            tried = self._judge(self.build(prices), prices)
            if self.best is None or self.best is tried:
                start, its_prices = tried, prices
            if self.bound >= self.worth:
                raise PassFailedException(
                    f"strategies that fit cost at least {self.bound * 1e3:.4g} ms, more than the"
                    f" {self.worth * 1e3:.4g} ms that are of interest"
                )
            stalled = stalled + 1 if self.least > _STALL * least else 0
            if self.best is None and stalled > _PATIENCE + 1:
                break
            has_stalled, is_new = stalled > _PATIENCE, False
            if tried.peak_bytes <= self.limit:
                high = _AtPrice(price, tried)
            else:
                low, is_new = _AtPrice(price, tried), self._new_point(tried)
            if self.best is not None and self.best.cost - self.bound <= _CLOSE * self.best.cost:
                break
            if high is None:
                price *= _LEAP if has_stalled else _STEP
            elif (between := self._between(low, high, tried.problem.problem, price)) is not None:
                price = between
            elif not is_new:
                break
        if self.best is None or self.best.cost - self.bound > _CLOSE * self.best.cost:
            # All solutions so far were found quickly; only the best one, or the last if none fits, is improved.
            self._judge(start.problem, its_prices, start.solution)
        if self.best is None:
            raise nothing_fits(self.least, self.limit)
        return replace(self.best, lower_bound=min(self.bound, self.best.cost))

    def _judge(self, problem: StrategyProblem, prices: Prices, known: Solution | None = None) -> ConstrainedSolution:
        """Return the strategy of a problem with prices, better than a known one if there is one; keep the best."""
        solution = self.solve(problem, self.allowance, known)
        self.bound = max(self.bound, solution.lower_bound - prices.total * self.limit)
        candidate = measured(self.memory, problem, self.free, solution, bound=self.bound)
        self.least = min(self.least, candidate.peak_bytes)
        if candidate.peak_bytes <= self.limit and (self.best is None or candidate.cost < self.best.cost):
            self.best = candidate
        return candidate

    def _between(self, low: _AtPrice, high: _AtPrice, problem: Problem, price: float) -> float | None:
        """
        Return the price that makes the strategies of two prices cost the same, or None if no other strategy is cheaper
        there (Handler and Zang, "A dual algorithm for the constrained shortest path problem", 1980).

        Args:
            problem: the problem at the present points, with `price` there.
        """
        if low.found is None or high.found is None:
            return high.price / _STEP
        # The points may have changed since the strategies were found, so their bytes are counted anew.
        few, many = (
            (problem.cost(it.found.solution.assignment) - it.found.cost) / price for it in (high, low) if it.found
        )
        if many <= few or high.found.cost <= low.found.cost:
            return None
        between = (high.found.cost - low.found.cost) / (many - few)
        least, most = low.price * (1.0 + _CLOSE), high.price / (1.0 + _CLOSE)
        return between if least < between < most else None

    def _new_point(self, found: ConstrainedSolution) -> bool:
        """Price also the point where `found` has its peak; return False if it has a price or enough points do."""
        point = self.position[found.peak_op]
        if point in self.points or len(self.points) >= 4:
            return False
        self.points.append(point)
        return True


def measured(
    memory: StrategyMemory,
    problem: StrategyProblem,
    free: StrategyProblem,
    solution: Solution,
    bound: float | None,
) -> ConstrainedSolution:
    """
    Return a solution as a strategy, with its seconds and its peak memory.

    The strategy is in memory-saving mode if `problem` differs from `free`, the problem without prices or limits.

    Args:
        bound: lower bound on the cost of every strategy that fits; by default the bound of the solution.
    """
    strategy = strategy_of(problem, solution, saves_memory=problem is not free)
    ops, held = memory.over_time(strategy)
    at = int(held.max(axis=1).argmax())
    cost = solution.cost if problem is free else unpriced_cost(problem, free, solution, memory.lifetimes)
    lower = solution.lower_bound if bound is None else bound
    return ConstrainedSolution(problem, solution, cost, lower, float(held[at].max()), ops[at], strategy)


def unpriced_cost(priced: StrategyProblem, free: StrategyProblem, solution: Solution, lifetimes: Lifetimes) -> float:
    """
    Return the cost of a strategy in the problem without prices, which excludes the charges for its bytes.

    Further reshardings of each regathered copy are added, as the unpriced problem never regathers.
    """
    states: list[int] = []
    for decision, plain, state in zip(priced.decisions, free.decisions, solution.assignment, strict=True):
        states.append(plain.states.index(decision.states[int(state)]))  # pyright: ignore[reportArgumentType]
    total = free.problem.cost(np.array(states))
    for edge in free.problem.edges:
        decision, plain = priced.decisions[edge.v], free.decisions[edge.v]
        again = decision.copy and decision.regather and decision.regather[int(solution.assignment[edge.v])]
        if again and not any(plain.regather):
            assert isinstance(decision.subject, SSAValue)
            further = lifetimes.gathers(decision.subject) - 1
            total += further * float(edge.table[states[edge.u], states[edge.v]])
    return total


def _size(count: float) -> str:
    if count < 2**20:
        return f"{count:.0f} bytes"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"
