"""
Partial strategies of duplex training that reach the same cut, as arrays with one row per strategy (HiDup, section 4.2).

A cut is a set of finished ops. A state is a cut with the shardings of the values that cross it: the states of all
decisions that a later op or the last phase depends on. The newest phase of a partial strategy is open. An op may begin
the next phase, or join the open phase unless it needs communication of a value that this phase computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..problem import Costs, States
from .duplex_cost import appended

Numbers = NDArray[np.int16]
"""States of decisions, or numbers of phases; -1 for undecided ones."""

Mask = NDArray[np.bool_]

_BLOCK = 512
"""The number of rows that are compared with all others at a time."""


@dataclass(frozen=True, eq=False)
class Partials:
    """
    Partial strategies, one per row.

    Args:
        states: decided state of each node.
        phases: number of each op's phase, with ops in program order.
        psi, phi: psi and phi of the phases before the open one.
        comm, comp: seconds of the open phase by micro-batch.
        phase, ops: number of the open phase, and number of its ops.
        floor: lower bound on the sum of `cost_to_go.py` for any completion.
        spent: part of that sum that psi and the open phase include.
    """

    states: Numbers
    phases: Numbers
    psi: Costs
    phi: Costs
    comm: Costs
    comp: Costs
    phase: States
    ops: States
    floor: Costs
    spent: Costs

    def __len__(self) -> int:
        return len(self.psi)

    def take(self, rows: States | Mask) -> Partials:
        """Return the selected rows."""
        return Partials(*(getattr(self, field.name)[rows] for field in fields(self)))

    @staticmethod
    def joined(parts: Sequence[Partials]) -> Partials:
        """Return the rows of all parts."""
        names = [field.name for field in fields(Partials)]
        return Partials(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def closed(self) -> tuple[Costs, Costs]:
        """Return psi and phi if the open phase ends now."""
        return appended(self.psi, self.phi, self.comm, self.comp)

    def expected(self) -> Costs:
        """Return psi plus the estimate of the remaining seconds."""
        return self.closed()[0] + self.floor - self.spent

    def least(self, rest: Costs, weight: float) -> Costs:
        """Return lower bounds on psi of completions with `rest` more seconds of computation, by micro-batch."""
        return np.maximum(appended(self.psi, self.phi, self.comm, self.comp + rest)[0], self.floor / (1.0 + weight))


def begin(nodes: int, ops: int, floor: float) -> Partials:
    """Return the strategy without phases."""
    zero, both, none = np.zeros(1), np.zeros((1, 2)), np.zeros(1, np.int64)
    states, phases = np.full((1, nodes), -1, np.int16), np.full((1, ops), -1, np.int16)
    return Partials(states, phases, zero, zero, both, both, none, none, np.full(1, floor), zero)


@dataclass(eq=False)
class Choices:
    """
    The choices of partial strategies for one more op, one per row.

    Args:
        rows: row of the partial strategy.
        columns: states of the nodes that the choice decides.
        comm, comp: seconds that the choice adds, by micro-batch.
        floor: seconds that the choice adds to the lower bound of the sum.
        blocked: whether the choice needs communication of a value that the open phase computes.
    """

    rows: States
    columns: dict[int, States]
    comm: Costs
    comp: Costs
    floor: Costs
    blocked: Mask

    @staticmethod
    def nothing(count: int) -> Choices:
        """Return one choice for each of `count` partial strategies, with all nodes undecided."""
        comm, comp = np.zeros((2, count, 2))
        return Choices(np.arange(count), {}, comm, comp, np.zeros(count), np.zeros(count, np.bool_))

    def crossed(self, node: int, states: States) -> Choices:
        """Return the choices combined with every state of another node."""
        choices = self.take(np.repeat(np.arange(len(self.rows)), len(states)))
        choices.columns[node] = np.tile(states, len(self.rows))
        return choices

    def take(self, rows: States) -> Choices:
        """Return the selected choices."""
        columns = {node: column[rows] for node, column in self.columns.items()}
        return Choices(self.rows[rows], columns, self.comm[rows], self.comp[rows], self.floor[rows], self.blocked[rows])

    def state(self, partials: Partials, node: int) -> NDArray[np.integer]:
        """Return the state of a node in each choice."""
        column = self.columns.get(node)
        return column if column is not None else partials.states[self.rows, node]


@dataclass(frozen=True, eq=False)
class Dominance:
    """
    The rows to drop.

    Args:
        by_costs: rows that another row with the same state dominates by psi and phi, as in the paper.
        by_times: other rows that finish no earlier than a row with the same state, by psi and psi + phi.
    """

    by_costs: Mask
    by_times: Mask


def find_dominated(partials: Partials, state: Numbers, by_times: bool) -> Dominance:
    """
    Return the rows that another row with the same state dominates; the first of equal rows stays.

    The seconds of the open phase are compared as well, as no completion becomes cheaper if they rise. Equation 5
    implies that psi after a phase depends on psi and psi + phi before it, and rises with both. So a strategy that is no
    later in both is at least as good as one that the paper's rule keeps for its longer last computation.
    """
    dominance = Dominance(np.zeros(len(partials), np.bool_), np.zeros(len(partials), np.bool_))
    padded = np.ascontiguousarray(np.pad(state, ((0, 0), (0, 1))))
    rows = padded.view(np.dtype((np.void, padded.shape[1] * padded.itemsize)))[:, 0]
    _, group, counts = np.unique(rows, return_inverse=True, return_counts=True)
    # The number of the group and its negative make rows of different groups incomparable.
    number = group.astype(np.float64)
    ops = partials.ops.astype(np.float64)
    both = [number, -number, partials.psi, *partials.comm.T, *partials.comp.T, ops]
    costs, times = (np.stack([*both, other]) for other in (partials.phi, partials.psi + partials.phi))
    order = np.argsort(group, kind="stable")
    together = [order] if len(order) <= _BLOCK else np.split(order, np.cumsum(counts)[:-1])
    for members in together:
        dominance.by_costs[members] = _worse(costs[:, members])
        if by_times:
            # Rows that rounding makes equal in one of the rules must not drop each other.
            left = members[~dominance.by_costs[members]]
            dominance.by_times[left] = _worse(times[:, left])
    return dominance


def _worse(costs: Costs) -> Mask:
    """Mark the columns that another column dominates: no larger in any row, and smaller in one row or earlier."""
    count = costs.shape[1]
    worse = np.zeros(count, np.bool_)
    if count < 2:
        return worse
    place = np.arange(count, dtype=np.int64)
    for start in range(0, count, _BLOCK):
        mine = costs[:, start : start + _BLOCK]
        below, above = np.ones((2, count, mine.shape[1]), np.bool_)
        for other, own in zip(costs, mine, strict=True):
            below &= other[:, None] <= own
            above &= other[:, None] >= own
        earlier: Mask = np.less.outer(place, place[start : start + _BLOCK])
        worse[start : start + _BLOCK] = np.any(below & (~above | earlier), axis=0)
    return worse
