"""The budget and memory thresholds that random, Metropolis and coordinate descent searches share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from random import Random

from xdsl.utils.exceptions import PassFailedException

from ..memory import StrategyMemory
from ..within_memory import ConstrainedSolution, measured, nothing_fits, require_arguments_fit
from .interface import SearchTask
from .layered_space import Choice, LayeredSpace
from .replication import by_threshold


class LayerWalk:
    """
    Counts the choices that a search visits in a space against the budget, and remembers the best.

    A step of the budget is a completion: one choice of states for all products, and all other nodes at least cost.
    """

    def __init__(self, space: LayeredSpace, random: Random, budget: int) -> None:
        self.space, self.random, self.budget = space, random, budget
        self.cost = float("inf")
        self.choice: Choice = {}
        self.counts = Counter[str]()
        self._choices = prod(map(space.model.size, space.decided))
        self._seen: set[tuple[int, ...]] = set()

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, or every choice was visited."""
        return self.counts["visited"] >= self.budget or len(self._seen) == self._choices

    def visit(self, cost: float, choice: Choice) -> None:
        """Count a choice, and remember it if it is the best."""
        self.counts["visited"] += 1
        if self._choices <= self.budget:
            self._seen.add(tuple(choice[node] for node in self.space.decided))
        if cost < self.cost:
            self.cost, self.choice = cost, choice

    def start(self) -> tuple[float, Choice]:
        """Visit a random choice, and return it with its cost."""
        choice = self.space.draw(self.random)
        cost = self.space.cost(choice)
        self.visit(cost, choice)
        self.counts["starts"] += 1
        return cost, choice


def search_layers(task: SearchTask, walk: Callable[[LayerWalk], None], default_budget: int) -> ConstrainedSolution:
    """
    Return the best strategy of a walk, at the highest threshold of replication whose strategy fits in memory.

    Raises:
        Infeasible: no strategy satisfies all constraints.
        PassFailedException: the walk visits no allowed strategy, or none fits in memory.
    """
    require_arguments_fit(task.view, task.free, task.limit)
    memory = StrategyMemory(task.view, task.cluster)
    budget = task.effort.budget if task.effort.budget is not None else default_budget
    least = float("inf")
    for number, (threshold, problem) in enumerate(by_threshold(task.free, task.view)):
        visited = LayerWalk(LayeredSpace(problem, task.view, task.effort.without), task.random, max(budget, 1))
        walk(visited)
        counts = {**visited.counts, "thresholds": number + 1, "replication": threshold}
        solution = visited.space.solution(visited.choice, counts)
        if solution.cost == float("inf"):
            if number == 0:
                raise PassFailedException(
                    f"none of the {visited.counts['visited']} strategies visited satisfies all constraints; use a"
                    " larger budget, or algorithm=eliminate"
                )
            continue
        candidate = measured(memory, problem, task.free, solution, bound=None)
        if candidate.peak_bytes <= task.limit:
            return candidate
        least = min(least, candidate.peak_bytes)
    raise nothing_fits(least, task.limit)
