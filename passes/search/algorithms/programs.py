"""
Append instructions to partial programs, and drop a program when another one is as good.

A program Q' is dropped if there is a program Q_s with P(Q_s) a superset of P(Q') and cost(Q_s) <= cost(Q'). Here this
means that Q_s has decided every node that Q' has decided, and that each live node of Q_s has the same state in Q'. Then
the instructions that complete Q' also complete Q_s, at no higher cost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..problem import Costs, States
from .instructions import Append, Instructions, Position

RECENT = 256
"""The number of latest positions to search for programs with more decisions; it affects only the speed."""


@dataclass(frozen=True, slots=True, eq=False)
class PartialProgram:
    """
    A partial program.

    Args:
        states: states of the live nodes of its position, which are its properties.
        before: the previous program, the last instruction, and the joint state that this instruction decided.
    """

    score: float
    position: Position
    states: tuple[int, ...]
    before: tuple[PartialProgram, Append, int] | None = None

    def decisions(self) -> list[tuple[int, int]]:
        """Return the decided nodes with their states, in the order of the instructions."""
        groups: list[list[tuple[int, int]]] = []
        program = self
        while program.before is not None:
            program, append, joint = program.before
            # Arguments have lower numbers than the ops and the working copies that are decided with them.
            groups.append(sorted(zip(append.nodes, append.decided(joint), strict=True)))
        return [decision for group in reversed(groups) for decision in group]


class Programs:
    """
    The programs of a search.

    Args:
        counts: counter of generated programs, and of dropped ones by rule.
        trace: list that receives the generated programs, or None.
    """

    def __init__(
        self,
        theory: Instructions,
        without: frozenset[str],
        counts: Counter[str],
        trace: list[PartialProgram] | None = None,
    ) -> None:
        self._theory, self._counts, self._trace = theory, counts, trace
        self._drops = "dominance" not in without
        self._least: dict[Position, dict[tuple[int, ...], float]] = {}
        self._recent: deque[Position] = deque(maxlen=RECENT)

    def longer(self, program: PartialProgram, enough: float, first_only: bool = False) -> Iterator[PartialProgram]:
        """
        Yield the programs with one more instruction, except dropped ones.

        Args:
            enough: score that a program must stay below.
            first_only: whether to append only the first of several possible instructions.
        """
        appends = program.position.appends
        for append in appends[:1] if first_only else appends:
            scores = program.score + append.added(program.states)
            joint = np.arange(len(scores))
            self._counts["generated"] += int(np.isfinite(scores).sum())
            if self._drops:
                scores, joint = self._cheapest_of_equals(append, scores)
            worth = np.flatnonzero(scores < enough)
            self._counts["dropped_by_score"] += int(np.isfinite(scores).sum()) - len(worth)
            decided = append.joint_states[joint[worth]].tolist()
            for index, states in zip(worth.tolist(), decided, strict=True):
                live = tuple(program.states[pick] if pick >= 0 else states[-1 - pick] for pick in append.picks)
                longer = PartialProgram(float(scores[index]), append.after, live, (program, append, int(joint[index])))
                if self._trace is not None:
                    self._trace.append(longer)
                if not self._drops or self._is_new(longer):
                    yield longer

    def is_replaced(self, program: PartialProgram) -> bool:
        """Return whether a program with all properties of this one was yielded and costs no more."""
        if not self._drops or program.before is None:
            return False
        replaced = self._least[program.position][program.states] < program.score or self._is_covered(program)
        self._counts["dropped_dominated"] += replaced
        return replaced

    def _cheapest_of_equals(self, append: Append, scores: Costs) -> tuple[Costs, States]:
        """Return the cheapest joint state for each combination of properties after an instruction, with its score."""
        table = scores.reshape(append.kept, -1)
        joint = table.argmin(axis=1) + np.arange(append.kept) * table.shape[1]
        cheapest = scores[joint]
        self._counts["dropped_dominated"] += int(np.isfinite(scores).sum() - np.isfinite(cheapest).sum())
        return cheapest, joint

    def _is_new(self, program: PartialProgram) -> bool:
        """Record a program; return False if another one with the same properties costs no more."""
        if program.position not in self._least:
            self._least[program.position] = {}
            self._recent.append(program.position)
        scores = self._least[program.position]
        if scores.get(program.states, np.inf) <= program.score:
            self._counts["dropped_dominated"] += 1
            return False
        scores[program.states] = program.score
        return True

    def _is_covered(self, program: PartialProgram) -> bool:
        """Return whether a program with more decisions has all properties of this one and costs no more."""
        if self._theory.has_one_order:
            return False
        here, cost = program.position, program.score - program.position.ahead(program.states)
        states = dict(zip(here.live, program.states, strict=True))
        for there in self._recent:
            if there is not here and not here.decided & ~there.decided and states.keys() >= set(there.live):
                same = tuple(states[node] for node in there.live)
                if self._least[there].get(same, np.inf) - there.ahead(same) <= cost:
                    return True
        return False
