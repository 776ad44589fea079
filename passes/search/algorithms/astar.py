"""
`algorithm=astar`: HAP's synthesis of a distributed program from the empty one.

    S = {Q_0},  Q* = null,  cost(Q*) = inf                                                                  (figure 10)
    while some Q in S has score(Q) < cost(Q*):
        take the Q of the lowest score; for each instruction with its precondition in P(Q) that adds a property:
            Q' = Q + instruction,  P(Q') = P(Q) + postcondition
            drop Q' if some Q_s has all its properties and costs no more; drop Q_s in the reverse case
            Q* = Q' if Q' is complete and cheaper, else S = S + {Q'}

`instructions.py` defines the instructions, preconditions and properties of a discrete problem, `scores.py` the score;
`programs.py` appends instructions and drops programs. All algorithms share one cost, so the optimum is the same.

A step of the budget is one program taken from S. When the budget is spent, a beam completes the programs of least
score, and the bound is the least score in S.

Parts that `without` switches off:

    fusion, redundant, order   See `instructions.py`. When `order` is off, only small steps can be searched.
    once        The users of a value share one communication, its working copy (4.5, second: a tensor is communicated
                at most once). When it is off, each user communicates separately, which may cost more.
    bound       The score estimates the remaining cost. When it is off, the score is the cost, and `ascent` is off too.
    ascent      Dual ascent improves the estimate. When it is off, the estimate is a sum of minima.
    states      Dominated states are dropped before the search.
    dominance   Of two programs with the same properties, the costlier one is dropped (lines 9 to 14).

Only `once` affects the optimum. The other parts affect the number of programs.

Source: HAP 4.3, 4.5. The estimate in the paper's code is zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush, nsmallest

import numpy as np

from ..conflict import explain_conflict
from ..problem import Infeasible, Problem, Solution, States, TooManyError
from ..reduction import Graph
from ..strategy_problem import StrategyProblem
from ..within_memory import ConstrainedSolution
from .instructions import Instructions
from .interface import SearchTask, within_limit
from .order import Reads
from .programs import PartialProgram, Programs
from .scores import drop_states, scores_of
from .theory import Triple, decision_triple

PARTS = frozenset({"fusion", "redundant", "order", "once", "bound", "ascent", "states", "dominance"})

BUDGET = 20_000
"""The number of programs taken from the queue by default."""

BEAMS = (16, 128, 1024)
"""The widths of the beams that complete programs; a wider beam is tried if the last one completes no program."""

CLOSE = 1e-10
"""The relative difference below which a score and a cost count as equal."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the optimum, or, after a spent budget, the best program of a beam with a lower bound."""
    without = task.effort.without

    def solve(problem: StrategyProblem, allowance: float) -> Solution:
        graph = Graph.of(problem.problem)
        if "once" in without:
            # Without copies in other shardings than the value's, each user communicates separately.
            for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
                if traffic.move.why == "copy":
                    same = np.array([[source == target for target in traffic.targets] for source in traffic.sources])
                    # A pin may forbid the copy every sharding of its value.
                    if same.any(axis=1).all():
                        graph.join(edge.u, edge.v, graph.store.intern(np.where(same, 0.0, np.inf)))
        return Synthesis(problem.problem, Reads.of(problem), graph, without, task.effort.budget).run(allowance)

    return within_limit(task, solve)


class Synthesis:
    """
    The search for the cheapest program of one problem; one use.

    Args:
        reads: neighbours of the nodes.
        graph: graph of the problem; the search changes it.
        without: parts that are switched off.
        budget: number of programs to take from the queue.
        trace: list that receives the generated programs, or None.
    """

    def __init__(
        self,
        problem: Problem,
        reads: Reads,
        graph: Graph,
        without: frozenset[str] = frozenset(),
        budget: int | None = None,
        trace: list[PartialProgram] | None = None,
    ) -> None:
        self.problem, self.reads, self.graph, self.without = problem, reads, graph, without
        self.budget, self.trace = BUDGET if budget is None else budget, trace
        self.counts = Counter[str](nodes=len(problem.unary), states=graph.total_states())
        self.best: States | None = None
        self.cost = np.inf

    def run(self, allowance: float = 0.0) -> Solution:
        """
        Return the cheapest program, or one that costs at most `allowance` more.

        Raises:
            Infeasible: no program is complete.
            TooManyError: the budget was spent before a program was complete.
        """
        bound = np.inf
        try:
            bound = self.search(self.theory(), allowance)
        except Infeasible:
            # The error below names a minimal set of conflicting nodes.
            pass
        if self.best is None:
            if bound < np.inf:
                raise TooManyError(f"none of the first {self.budget} programs could be completed; give a larger budget")
            raise explain_conflict(self.problem, _is_infeasible)
        return Solution(self.best, self.cost, min(bound, self.cost), dict(self.counts))

    def theory(self) -> Instructions:
        """Return the instructions of the problem after dropping states."""
        self.counts["dropped_states"] = drop_states(self.graph, self.without)
        self.counts["states_left"] = self.graph.total_states()
        return Instructions(self.reads, scores_of(self.graph, self.without), self.without)

    def search(self, theory: Instructions, allowance: float) -> float:
        """Run figure 10 from the empty program, and return a lower bound on the cost of all complete programs."""
        programs = Programs(theory, self.without, self.counts, self.trace)
        start = PartialProgram(theory.scores.start, theory.start, ())
        queue: list[tuple[float, int, int, PartialProgram]] = [(start.score, 0, 0, start)]
        serial, taken = 0, 0
        while queue and queue[0][0] < self.enough(allowance) and taken < self.budget:
            program = heappop(queue)[-1]
            if programs.is_replaced(program):
                continue
            taken += 1
            for longer in programs.longer(program, self.enough()):
                if longer.position.is_complete:
                    self.keep(longer)
                else:
                    serial += 1
                    # Among equal scores the longer program comes first, as it is nearer to a complete one.
                    heappush(queue, (longer.score, -longer.position.depth, serial, longer))
        self.counts["taken"] += taken
        least = queue[0][0] if queue else np.inf
        if taken >= self.budget and least < self.enough(allowance):
            self.complete(theory, [entry[-1] for entry in nsmallest(BEAMS[-1], queue)])
        return least if least < self.enough() else self.cost

    def complete(self, theory: Instructions, partial: Sequence[PartialProgram]) -> None:
        """Complete programs by a beam, which keeps the programs of least score at each depth."""
        for width in BEAMS:
            programs = Programs(theory, self.without, Counter())
            waiting: dict[int, list[PartialProgram]] = {}
            for program in partial:
                waiting.setdefault(program.position.depth, []).append(program)
            completed = False
            while waiting:
                for program in nsmallest(width, waiting.pop(min(waiting)), key=lambda program: program.score):
                    self.counts["taken_by_beam"] += 1
                    for longer in programs.longer(program, np.inf, first_only=True):
                        if longer.position.is_complete:
                            self.keep(longer)
                            completed = True
                        else:
                            waiting.setdefault(longer.position.depth, []).append(longer)
            if completed:
                return

    def keep(self, program: PartialProgram) -> None:
        """Keep a complete program if it is the cheapest so far."""
        states = np.zeros(len(self.problem.unary), dtype=np.int64)
        for node, state in self.decisions(program):
            states[node] = state
        cost = self.problem.cost(states)
        if cost < self.cost:
            self.best, self.cost = states, cost

    def decisions(self, program: PartialProgram) -> list[tuple[int, int]]:
        """Return the decided nodes of a program with their states in the problem."""
        graph = self.graph
        return [(node, int(graph.store[graph.states[node]][state])) for node, state in program.decisions()]

    def enough(self, allowance: float = 0.0) -> float:
        """Return the score that a program must stay below to be taken."""
        return self.cost - max(CLOSE * abs(self.cost), allowance) if np.isfinite(self.cost) else np.inf


def trace(
    problem: StrategyProblem, axes: Sequence[str], without: frozenset[str] = frozenset(), reads: Reads | None = None
) -> list[tuple[Triple, ...]]:
    """
    Return all programs that the search generates, in order, each as a sequence of triples.

    Args:
        axes: names of the axes of the mesh.
        reads: neighbours of the nodes; by default, the neighbours in the step.
    """
    generated: list[PartialProgram] = []
    graph = Graph.of(problem.problem)
    synthesis = Synthesis(problem.problem, reads or Reads.of(problem), graph, without, trace=generated)
    synthesis.run()
    return [
        tuple(decision_triple(problem.decisions[node], state, axes) for node, state in synthesis.decisions(program))
        for program in generated
    ]


def _is_infeasible(problem: Problem) -> bool:
    """Return whether a problem has no complete program."""
    reads = Reads.of_pairs(len(problem.unary), ((edge.u, edge.v) for edge in problem.edges))
    synthesis = Synthesis(problem, reads, Graph.of(problem))
    try:
        synthesis.search(synthesis.theory(), 0.0)
    except Infeasible:
        return True
    return synthesis.best is None
