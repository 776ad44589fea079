"""
The instructions of distributed programs, and the properties that they establish.

An *instruction* decides one node of the discrete problem. An op with its signature is a computation, together with the
collectives that bring its operands into the required shardings. A home is a Placeholder-Shard or a Parameter-Shard. A
working copy is a communication that several users share. The precondition of an instruction is that the nodes that it
reads, its neighbours earlier in data flow, are decided.

A *position* is a set of decided nodes. Its *live* nodes have an undecided neighbour, whose decision depends on their
states. These states are the properties P(Q) of a program Q at this position.

Parts:

    fusion      A node with an empty precondition is decided together with the first node that reads it (4.5, first).
    redundant   A node stops being live when all its neighbours are decided (4.5, third).
    order       Nodes are decided in one order that keeps few of them live (`order.py`). When it is off, they are
                decided in every order that preconditions allow, as in figure 10.

Source: HAP 4.2, 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..problem import Costs
from .order import NO_FUSION, Reads, fusion_of, greedy_order
from .scores import Scores


@dataclass(frozen=True, eq=False)
class Append:
    """
    An instruction, or several fused ones, appended at a position.

    Args:
        nodes: nodes that it decides; nodes that stay live are first.
        shape: number of states of each node.
        kept: number of joint states of the nodes that stay live.
        base: addition to the score by joint state, without `reads`.
        reads: pairs for the live neighbours: the index of the neighbour among the live nodes, and a table of additions
            to the score, by the neighbour's state and the joint state.
        after: position after the instruction.
        picks: sources of the live states after the instruction: an index among the live nodes before it, or a negative
            number, which counts `nodes` from -1 on.
    """

    nodes: tuple[int, ...]
    shape: tuple[int, ...]
    kept: int
    base: Costs
    reads: tuple[tuple[int, Costs], ...]
    after: Position
    picks: tuple[int, ...]

    def added(self, states: Sequence[int]) -> Costs:
        """Return the additions to the score by joint state, given the states of the live nodes."""
        total = self.base
        for place, table in self.reads:
            total = total + table[states[place]]
        return total

    def decided(self, joint: int) -> tuple[int, ...]:
        """Return the states of the nodes in a joint state."""
        return tuple(map(int, np.unravel_index(joint, self.shape)))

    @cached_property
    def joint_states(self) -> NDArray[np.int64]:
        """Return the states of the nodes in every joint state."""
        return np.stack(np.unravel_index(np.arange(prod(self.shape)), self.shape), axis=1)


class Position:
    """A set of decided nodes, and the instructions that can be appended there."""

    def __init__(self, instructions: Instructions, decided: int, live: tuple[int, ...], depth: int) -> None:
        self._instructions = instructions
        self.decided, self.live, self.depth = decided, live, depth

    @cached_property
    def appends(self) -> tuple[Append, ...]:
        """Return the instructions that can be appended; a complete program has none."""
        return tuple(self._instructions.append(self, nodes) for nodes in self._instructions.next_nodes(self.decided))

    @property
    def is_complete(self) -> bool:
        """Return whether every node is decided."""
        return self.decided == self._instructions.all_nodes

    def ahead(self, states: Sequence[int]) -> float:
        """Return `ecost`: the estimated part of a score at this position, given the states of the live nodes."""
        constant, by_node = self._ahead
        return constant + sum(float(costs[state]) for costs, state in zip(by_node, states, strict=True))

    @cached_property
    def _ahead(self) -> tuple[float, tuple[Costs, ...]]:
        return self._instructions.ahead(self)


class Instructions:
    """The instructions of one problem, at given scores."""

    def __init__(self, reads: Reads, scores: Scores, without: frozenset[str]) -> None:
        self.reads, self.scores, self.without = reads, scores, without
        self.sizes = [len(scores.unary[node]) for node in range(len(scores.unary))]
        self.all_nodes = (1 << len(self.sizes)) - 1
        self._positions: dict[int, Position] = {}
        self.fusion = NO_FUSION if "fusion" in without else fusion_of(reads, self.sizes)
        self._order = greedy_order(reads, self.fusion, self.sizes) if self.has_one_order else {}

    @property
    def has_one_order(self) -> bool:
        """Return whether nodes are decided in a fixed order."""
        return "order" not in self.without

    @property
    def start(self) -> Position:
        """Return the position of the empty program."""
        return self._position(0, (), 0)

    def next_nodes(self, decided: int) -> list[tuple[int, ...]]:
        """Return the groups of nodes that can be decided next."""
        if decided == self.all_nodes:
            return []
        if decided in self._order:
            return [self._order[decided]]
        groups: list[tuple[int, ...]] = []
        for node in range(len(self.sizes)):
            if decided >> node & 1 or node in self.fusion.never_alone:
                continue
            group = self.fusion.group(node, decided)
            if all(decided >> other & 1 or other in group for other in self.reads.before[node]):
                groups.append(group)
        return groups

    def _position(self, decided: int, live: tuple[int, ...], depth: int) -> Position:
        if decided not in self._positions:
            self._positions[decided] = Position(self, decided, live, depth)
        return self._positions[decided]

    def append(self, at: Position, nodes: tuple[int, ...]) -> Append:
        """Return the instructions of `nodes`, appended at a position."""
        decided = at.decided
        for node in nodes:
            decided |= 1 << node
        needed = [n for n in (*at.live, *nodes) if "redundant" in self.without or self._is_needed(n, decided)]
        after = self._position(decided, tuple(sorted(needed)), at.depth + len(nodes))
        nodes = (*(n for n in nodes if n in needed), *(n for n in nodes if n not in needed))
        shape = tuple(self.sizes[node] for node in nodes)
        axes = {node: axis for axis, node in enumerate(nodes)}
        base = np.zeros(shape)
        for node in nodes:
            base += _along(self.scores.unary[node], (axes[node],), len(shape))
            for other in self.reads.around[node]:
                if axes.get(other, -1) > axes[node]:
                    base += _along(self.scores.tables[node, other], (axes[node], axes[other]), len(shape))
                elif self.scores.looks_ahead and not decided >> other & 1:
                    base += _along(self.scores.ahead(node, other), (axes[node],), len(shape))
        return Append(
            nodes,
            shape,
            prod(self.sizes[node] for node in nodes if node in needed),
            base.ravel(),
            tuple(self._reads(at, axes, shape)),
            after,
            tuple(at.live.index(n) if n in at.live else -1 - axes[n] for n in after.live),
        )

    def ahead(self, at: Position) -> tuple[float, tuple[Costs, ...]]:
        """Return `ecost` at a position as a constant and, for each live node, an addition by state."""
        scores, outside = self.scores, {node for node in range(len(self.sizes)) if not at.decided >> node & 1}
        constant = sum(scores.least[node,] for node in outside)
        constant += sum(least for pair, least in scores.least.items() if len(pair) == 2 and outside & {*pair})
        by_node: list[Costs] = []
        for node in at.live:
            costs = np.zeros(self.sizes[node])
            for other in self.reads.around[node] & outside:
                costs += scores.moved.get((node, other), 0.0)
                costs += scores.ahead(node, other) if scores.looks_ahead else 0.0
            by_node.append(costs)
        return constant, tuple(by_node)

    def _reads(self, at: Position, axes: Mapping[int, int], shape: tuple[int, ...]) -> Iterator[tuple[int, Costs]]:
        """Yield `Append.reads` for nodes that are decided at a position."""
        for place, live in enumerate(at.live):
            total = np.zeros((self.sizes[live], *shape))
            touched = [node for node in axes if node in self.reads.around[live]]
            for node in touched:
                table = self.scores.tables[live, node]
                if self.scores.looks_ahead:
                    table = table - self.scores.ahead(live, node)[:, None]
                total += _along(table, (0, 1 + axes[node]), 1 + len(shape))
            if touched:
                yield place, total.reshape(self.sizes[live], -1)

    def _is_needed(self, node: int, decided: int) -> bool:
        """Return whether an undecided neighbour needs the state of a node."""
        return any(not decided >> other & 1 for other in self.reads.around[node])


def _along(costs: Costs, axes: tuple[int, ...], dims: int) -> Costs:
    """Reshape an array so that it broadcasts along these axes (ascending) of an array with `dims` dims."""
    shape = [1] * dims
    for axis, size in zip(axes, costs.shape, strict=True):
        shape[axis] = size
    return costs.reshape(shape)
