"""
The search space of AutoDDL's algorithms: the signatures of products, grouped by layer.

A layer is a product of the model with the products of its backward, as in AutoDDL (section 4.2.2), or an attention or
a convolution: the contractions of one module. A layer's decision is a signature for each of them. All other nodes are
completed at least cost (`completion.py`), whereas AutoDDL lets them follow their layer.

Before the search, equal layers are tied (`ties.py`), and the problem is reduced without losing the optimum
(`reduction.py`). The reduction decides dominated signatures and products with at most two neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from xdsl.ir import OpResult, SSAValue

from ....dialects.compute import ComputeOp
from ...analysis.compute import is_contraction
from ...step.blocks import layer_of
from ...step.step_view import StepView
from ..problem import Infeasible, Problem, Solution
from ..reduction import Eliminated, Graph, recover, reduce
from ..strategy_problem import StrategyProblem
from .completion import Completion
from .elimination_steps import FiniteModel
from .ties import TIES, least_cost, tied

REDUCTION = "reduction"
"""The name of the reduction among the parts of an algorithm."""

PARTS = frozenset({TIES, REDUCTION})
"""The parts of every algorithm on this space."""

Choice = dict[int, int]
"""The state of each decided node."""


class LayeredSpace:
    """
    All choices of states for the decided nodes of a problem, with their costs.

    `layers` has the decided nodes of each layer; `decided` has all of them.
    """

    def __init__(self, problem: StrategyProblem, view: StepView, without: frozenset[str]) -> None:
        self.given = problem
        self.tied = tied(problem, view, without)
        self.graph, self._trail = self._reduced(self.tied.problem, without)
        subjects = {node: problem.decisions[self.tied.members[node][0]].subject for node in self.graph.unary}
        products = {node for node, op in subjects.items() if isinstance(op, ComputeOp) and is_contraction(op)}
        self.model = FiniteModel.of(self.graph)
        self.completion = Completion(self.model, set(subjects) - products, subjects)
        self.decided = self.completion.decided
        groups: dict[object, list[int]] = {}
        for node in self.decided:
            groups.setdefault(_module(subjects[node]) or node, []).append(node)
        self.layers = tuple(map(tuple, groups.values()))
        self._completions: dict[int, Completion] = {}

    def _reduced(self, problem: Problem, without: frozenset[str]) -> tuple[Graph, list[Eliminated]]:
        graph = Graph.of(problem)
        try:
            return graph, ([] if REDUCTION in without else reduce(graph))
        except Infeasible as error:
            raise self.tied.explained(error) from error

    def draw(self, random: Random) -> Choice:
        """Return a choice at random."""
        return {node: random.randrange(self.model.size(node)) for node in self.decided}

    def is_allowed(self, cost: float) -> bool:
        """Whether a choice of that cost avoids every forbidden state and pair."""
        return cost - self.graph.offset < self.model.forbidden

    def cost(self, choice: Mapping[int, int]) -> float:
        """Return the least cost of a choice."""
        return self.graph.offset + self.completion.cost(choice)

    def best_of(
        self, layer: int, choice: Mapping[int, int], pinned: Mapping[int, int] | None = None
    ) -> tuple[float, Choice]:
        """
        Return the cost and the choice with the cheapest states of one layer; the other layers do not change.

        Args:
            pinned: fixed states of some nodes of the layer.
        """
        if layer not in self._completions:
            nodes = self.layers[layer]
            self._completions[layer] = Completion(self.model, {*self.completion.free, *nodes}, nodes)
        cost, completed = self._completions[layer].completed(choice, pinned or {})
        return self.graph.offset + cost, {node: completed[node] for node in self.decided}

    def solution(self, choice: Mapping[int, int], statistics: Mapping[str, int]) -> Solution:
        """Return the assignment that completes a choice in the original problem; the cost is inf if it is forbidden."""
        _, completed = self.completion.completed(choice, {})
        store = self.graph.store
        chosen = {node: int(store[self.graph.states[node]][at]) for node, at in completed.items()}
        recover(store, self._trail, chosen)
        assignment = self.tied.expanded([chosen[node] for node in range(len(self.tied.members))])
        cost = self.given.problem.cost(assignment)
        return Solution(assignment, cost, min(least_cost(self.given.problem), cost), {**self.counts, **statistics})

    @property
    def counts(self) -> dict[str, int]:
        """Return the sizes of the space and the number of messages that completions computed or looked up."""
        completions = [self.completion, *self._completions.values()]
        return {
            "layers": len(self.layers),
            "decided": len(self.decided),
            "tied": self.tied.tied_nodes,
            "reduced": len(self._trail),
            "messages_computed": sum(completion.computed for completion in completions),
            "messages_looked_up": sum(completion.looked_up for completion in completions),
        }


def _module(subject: ComputeOp | SSAValue) -> str:
    """Return the module of a decision, or an empty string if it is unknown."""
    if isinstance(subject, OpResult):
        return layer_of(subject.op)
    return layer_of(subject) if isinstance(subject, ComputeOp) else ""
