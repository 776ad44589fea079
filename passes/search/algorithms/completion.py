"""
Completion: some nodes of a pairwise model are decided, and the others take the cheapest states given these decisions.

The order of elimination is found once, without computing costs. The elimination of a free node i leaves a message, a
table over its free neighbours N(i), which depends on the states x_D of its decided neighbours:

    m_i[x_N(i)]  =  min_x  unary_i[x] + sum_d table_di[x_d, x] + sum_(j in N(i)) table_ij[x, x_j] + sum_(k before i) m_k

Completions that differ in few decided states have most messages in common, and these are looked up.

Source: Dechter, "Bucket elimination: a unifying framework for reasoning" (1999), section 7, on conditioning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

import numpy as np

from ..problem import Costs, States
from .elimination_steps import Elimination, FiniteModel, eliminations_in, find_order

_KEPT = 64
"""The maximum number of cached messages of one node."""

Columns = Mapping[int, int | States]
"""The state of each decided node, or its states in several completions."""


class Completion:
    """
    Completes the states of decided nodes at least cost.

    `spare` are free nodes that are decided instead if a table would have more than `MAX_JOINT` entries. `work` is the
    number of entries of all tables that one completion computes; the largest table has `widest` entries.
    """

    def __init__(self, model: FiniteModel, free: Iterable[int], spare: Collection[int]) -> None:
        self.model = model
        order, self.work, self.widest = find_order(model, set(free), spare)
        self.free = frozenset(order)
        self.decided = tuple(node for node in model.unary if node not in self.free)
        self._steps, self._roots = eliminations_in(model, order)
        self._pairs = [
            (node, other, table)
            for node in self.decided
            for other, table in model.tables[node].items()
            if node < other and other not in self.free
        ]
        self._known: list[dict[tuple[object, ...], tuple[int, Costs]]] = [{} for _ in self._steps]
        self._serials = count()
        self.looked_up = 0
        self.computed = 0

    def cost(self, states: Mapping[int, int]) -> float:
        """Return the least cost of an assignment with these states of the decided nodes."""
        return self._cost(states, self._messages(states, {}))

    def costs(self, columns: Columns) -> Costs:
        """Return the least costs of several completions at once."""
        messages: list[Costs] = []
        for step in self._steps:
            messages.append(_total(self.model, step, columns, messages).min(axis=1))
        totals = self._decided_cost(columns)
        for root in self._roots:
            totals = totals + messages[root].reshape(-1)
        return np.atleast_1d(totals)

    def completed(self, states: Mapping[int, int], pinned: Mapping[int, int]) -> tuple[float, dict[int, int]]:
        """
        Return the cost of a cheapest completion and the state of every node.

        Args:
            pinned: fixed states of some nodes, also of free ones.
        """
        states = {**states, **pinned}
        messages = self._messages(states, pinned)
        chosen = {node: states[node] for node in self.decided}
        for step in reversed(self._steps):
            costs = self.model.unary[step.node].copy()
            for node, table in step.decided:
                costs += table[chosen[node]]
            for other in step.scope:
                if (table := self.model.tables[step.node].get(other)) is not None:
                    costs += table[:, chosen[other]]
            for number, _, _ in step.messages:
                around = (chosen[node] if node != step.node else slice(None) for node in self._steps[number].scope)
                costs += messages[number][(0, *around)]
            chosen[step.node] = pinned[step.node] if step.node in pinned else int(costs.argmin())
        return self._cost(states, messages), chosen

    def _cost(self, states: Mapping[int, int], messages: Sequence[Costs]) -> float:
        return float(self._decided_cost(states)) + sum(float(messages[root].item()) for root in self._roots)

    def _decided_cost(self, columns: Columns) -> Costs:
        total = np.zeros(())
        for node in self.decided:
            total = total + self.model.unary[node][columns[node]]
        for node, other, table in self._pairs:
            total = total + table[columns[node], columns[other]]
        return np.asarray(total)

    def _messages(self, states: Mapping[int, int], pinned: Mapping[int, int]) -> list[Costs]:
        messages: list[Costs] = []
        serials: list[int] = []
        for step, known in zip(self._steps, self._known, strict=True):
            near = (states[node] for node, _ in step.decided)
            before = (serials[number] for number, _, _ in step.messages)
            key = (*near, *before, pinned.get(step.node))
            if key in known:
                self.looked_up += 1
            else:
                self.computed += 1
                if len(known) >= _KEPT:
                    known.clear()
                total = _total(self.model, step, states, messages)
                at = pinned.get(step.node)
                # A serial number identifies a message permanently, also after the message was dropped.
                known[key] = next(self._serials), total.min(axis=1) if at is None else total[:, at]
            serial, message = known[key]
            serials.append(serial)
            messages.append(message)
        return messages


def _total(model: FiniteModel, step: Elimination, columns: Columns, messages: Sequence[Costs]) -> Costs:
    """Return the costs of a node, its edges and its messages, summed; dims (completions, node, scope)."""
    size, ones = model.size(step.node), (1,) * len(step.scope)
    own = np.zeros((1, size))
    for node, table in step.decided:
        own = own + table[columns[node]].reshape(-1, size)
    total = own.reshape(len(own), size, *ones)
    for costs in step.fixed:
        total = total + costs
    for number, dim, shape in step.messages:
        message = np.moveaxis(messages[number], dim + 1, 1)
        total = total + message.reshape(len(message), *shape)
    return total
