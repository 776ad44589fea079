"""
`algorithm=astar`: HAP's synthesis of a distributed program from the empty one.

    S = {Q_0},  Q* = null,  cost(Q*) = inf                                                                  (figure 10)
    while some Q in S has score(Q) < cost(Q*):
        take the Q of the lowest score; for each instruction with its precondition in P(Q) that adds a property:
            Q' = Q + instruction,  P(Q') = P(Q) + postcondition
            drop Q' if some Q_s has all its properties and costs no more; drop each Q_s for which Q' is such a program
            Q* = Q' if Q' is complete and cheaper, else S = S + {Q'}

`instructions.py` says which instructions, preconditions and properties a discrete problem has, `scores.py` defines the
score, `programs.py` appends and drops. The cost is that of all algorithms, and so is the optimum.

The steps of the budget are programs taken from S. When they are spent, a beam completes the programs of least score,
and the bound is the least score in S.

Parts that `without` switches off:

    fusion, redundant, order   see `instructions.py`; without `order` only the smallest steps can be searched
    once        the users of a value share its one communication, the working copy (4.5, second: no repeated
                communication of a tensor); without it each user communicates for itself, which may cost more
    bound       the estimate of the cost to come, and with it `ascent`
    ascent      the dual ascent that improves this estimate; without it only minima of costs are added up
    states      dominated states are left out of the theory
    dominance   of two programs with the same properties, the costlier is dropped (lines 9 to 14)

The optimum is the same without any of them but `once`.

Source: HAP 4.3, 4.5. The paper's code has zero for the estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush, nsmallest

import numpy as np
from xdsl.utils.exceptions import PassFailedException

from ..conflict import explain_conflict
from ..problem import Infeasible, Problem, Solution, States, TooManyError
from ..reduction import Graph
from ..strategy_problem import StrategyProblem
from ..within_memory import Found
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
"""The widths of the beams that complete programs; a wider one where a narrower one finds no complete program."""

CLOSE = 1e-10
"""The difference, relative to the cost, below which a score is no better than a cost."""


def search(task: SearchTask) -> Found:
    """Return the optimum, or, where the budget does not suffice, the best that a beam finds, with a bound."""
    without = task.effort.without
    if unknown := sorted(without - PARTS):
        message = f"astar has no part '{unknown[0]}' to run without; its parts are {', '.join(sorted(PARTS))}"
        raise PassFailedException(message)

    def solve(problem: StrategyProblem, allowance: float) -> Solution:
        graph = Graph.of(problem.problem)
        if "once" in without:
            _forbid_working_copies(problem, graph)
        return Synthesis(problem.problem, Reads.of(problem), graph, without, task.effort.budget).run(allowance)

    return within_limit(task, solve)


class Synthesis:
    """
    The search for the cheapest program of one problem; one use.

    Args:
        reads: what the nodes of the problem read.
        graph: the graph of the problem; it is used up.
        without: parts that are switched off.
        budget: number of programs to take from the queue.
        trace: where the programs that the search generates are listed, if they are to be.
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
            # The error below names nodes of which none can be left out.
            pass
        if self.best is None:
            if bound < np.inf:
                raise TooManyError(f"none of the first {self.budget} programs could be completed; give a larger budget")
            raise explain_conflict(self.problem, _is_infeasible)
        return Solution(self.best, self.cost, min(bound, self.cost), dict(self.counts))

    def theory(self) -> Instructions:
        """Return the instructions of the problem, without those that no cheapest program needs."""
        self.counts["dropped_states"] = drop_states(self.graph, self.without)
        self.counts["states_left"] = self.graph.total_states()
        return Instructions(self.reads, scores_of(self.graph, self.without), self.without)

    def search(self, theory: Instructions, allowance: float) -> float:
        """Run figure 10 from the empty program, and return a bound of the cost of all programs."""
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
                    # Of equal scores the longer program comes first: it is nearer to a complete one.
                    heappush(queue, (longer.score, -longer.position.depth, serial, longer))
        self.counts["taken"] += taken
        least = queue[0][0] if queue else np.inf
        if taken >= self.budget and least < self.enough(allowance):
            self.complete(theory, [entry[-1] for entry in nsmallest(BEAMS[-1], queue)])
        return least if least < self.enough() else self.cost

    def complete(self, theory: Instructions, partial: Sequence[PartialProgram]) -> None:
        """Complete programs by a beam: among programs of one depth, those of least score go on."""
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
        """Make a complete program the best one, if it is the cheapest so far."""
        states = np.zeros(len(self.problem.unary), dtype=np.int64)
        for node, state in self.decisions(program):
            states[node] = state
        cost = self.problem.cost(states)
        if cost < self.cost:
            self.best, self.cost = states, cost

    def decisions(self, program: PartialProgram) -> list[tuple[int, int]]:
        """Return the nodes that a program has decided, with their states in the problem."""
        graph = self.graph
        return [(node, int(graph.store[graph.states[node]][state])) for node, state in program.decisions()]

    def enough(self, allowance: float = 0.0) -> float:
        """Return the score from which on no program is worth taking."""
        return self.cost - max(CLOSE * abs(self.cost), allowance) if np.isfinite(self.cost) else np.inf


def trace(
    problem: StrategyProblem, axes: Sequence[str], without: frozenset[str] = frozenset(), reads: Reads | None = None
) -> list[tuple[Triple, ...]]:
    """
    Return the programs that the search generates, in its order: the triple of each instruction.

    Args:
        axes: names of the axes of the mesh.
        reads: what the nodes of the problem read, if that is not what their ops read.
    """
    generated: list[PartialProgram] = []
    graph = Graph.of(problem.problem)
    synthesis = Synthesis(problem.problem, reads or Reads.of(problem), graph, without, trace=generated)
    synthesis.run()
    return [
        tuple(decision_triple(problem.decisions[node], state, axes) for node, state in synthesis.decisions(program))
        for program in generated
    ]


def _forbid_working_copies(problem: StrategyProblem, graph: Graph) -> None:
    """Leave every working copy the form in which its value is, so that each user communicates for itself."""
    for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
        if traffic.move.why == "copy":
            same = np.array([[source == target for target in traffic.targets] for source in traffic.sources])
            # A pin may leave the copy none of the forms of its value.
            if same.any(axis=1).all():
                graph.join(edge.u, edge.v, graph.store.intern(np.where(same, 0.0, np.inf)))


def _is_infeasible(problem: Problem) -> bool:
    """Return whether no program of a problem is complete."""
    reads = Reads.of_pairs(len(problem.unary), ((edge.u, edge.v) for edge in problem.edges))
    synthesis = Synthesis(problem, reads, Graph.of(problem))
    try:
        synthesis.search(synthesis.theory(), 0.0)
    except Infeasible:
        return True
    return synthesis.best is None
