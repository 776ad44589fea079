"""
Preconditions of instructions, the fusion of instructions, and the order of appending them.

A training step has long-lived properties: activations wait for backward, homes for updates. In the order of data flow,
the number of live properties grows with the depth of the model. (The graphs of the paper are forward only.) The order
here follows the model and decides forward, backward and update of a layer together. So a gradient may be read before it
is decided. Then the sharding that its reader expects is a demand, and the communication is paid for when the op that
computes the gradient is decided.

Source: HAP 4.5 (the first optimization is fusion); the order is not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from ..strategy_problem import StrategyProblem

MOST_JOINT_STATES = 4096
"""The maximum number of joint states of nodes that are decided together."""

FEW = 8
"""A node with more undecided neighbours is assumed to stay live, and its neighbours are not evaluated again."""


@dataclass(frozen=True)
class Reads:
    """
    The neighbours of each node.

    Args:
        before: neighbours that the node reads.
        around: all neighbours.
    """

    before: Sequence[frozenset[int]]
    around: Sequence[frozenset[int]]

    @classmethod
    def of_pairs(cls, count: int, pairs: Iterable[tuple[int, int]]) -> Reads:
        """Return the neighbours of `count` nodes; the second node of each pair reads the first one."""
        before: list[set[int]] = [set() for _ in range(count)]
        around: list[set[int]] = [set() for _ in range(count)]
        for first, second in pairs:
            before[second].add(first)
            around[first].add(second)
            around[second].add(first)
        return cls(tuple(map(frozenset, before)), tuple(map(frozenset, around)))

    @classmethod
    def of(cls, problem: StrategyProblem) -> Reads:
        """Return the neighbours in a step's problem; a home exists before the op that makes its new value."""
        changes = zip(problem.problem.edges, problem.traffic, strict=True)
        pairs = ((e.v, e.u) if change.move.why == "home" else (e.u, e.v) for e, change in changes)
        return cls.of_pairs(len(problem.decisions), pairs)


@dataclass(frozen=True)
class Fusion:
    """
    The nodes with an empty precondition, which are decided together with the first node that reads them.

    Args:
        by_reader: nodes that may be fused with a reader, by reader.
        never_alone: nodes that are only decided together with a reader.
    """

    by_reader: Mapping[int, frozenset[int]]
    never_alone: frozenset[int]

    def group(self, node: int, decided: int) -> tuple[int, ...]:
        """Return a node together with the undecided nodes that are fused with it."""
        return (node, *sorted(root for root in self.by_reader.get(node, ()) if not decided >> root & 1))


NO_FUSION = Fusion({}, frozenset())


def fusion_of(reads: Reads, sizes: Sequence[int]) -> Fusion:
    """Return the fusion of nodes with these numbers of states, with at most `MOST_JOINT_STATES` in a group."""
    roots = {node for node, before in enumerate(reads.before) if not before and reads.around[node]}
    alone: set[int] = set()
    for node, before in enumerate(reads.before):
        together = sizes[node]
        for root in sorted(before & roots, key=lambda root: (sizes[root], root)):
            together *= sizes[root]
            if together > MOST_JOINT_STATES:
                alone.add(root)
    fused = {node: before & roots - alone for node, before in enumerate(reads.before) if before & roots - alone}
    return Fusion(fused, frozenset(roots - alone))


def greedy_order(reads: Reads, fusion: Fusion, sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Map sets of decided nodes (bits) to the next group of nodes, chosen greedily to keep few states live."""
    order: dict[int, tuple[int, ...]] = {}
    decided, around = 0, reads.around
    waiting_for = [len(neighbours) for neighbours in around]
    waiting = {node: None for node in range(len(sizes)) if node not in fusion.never_alone}
    candidates: dict[int, tuple[float, int]] = {}

    def growth(node: int) -> tuple[float, int]:
        """Return the growth of the logarithm of the number of live states if a group is decided, and the node."""
        group = set(fusion.group(node, decided))
        touched = {other for member in group for other in around[member] if decided >> other & 1}
        closed = (other for other in touched if waiting_for[other] == len(around[other] & group))
        opened = (member for member in group if waiting_for[member] > len(around[member] & group))
        return sum(log(sizes[n]) for n in opened) - sum(log(sizes[n]) for n in closed), node

    while waiting:
        node = min(candidates, key=candidates.__getitem__) if candidates else next(iter(waiting))
        order[decided] = group = fusion.group(node, decided)
        changed: set[int] = set()
        for member in group:
            decided |= 1 << member
            waiting.pop(member, None)
            candidates.pop(member, None)
            for other in around[member]:
                waiting_for[other] -= 1
                # A node with many undecided neighbours stays live, whichever neighbour is decided next.
                changed |= {other, *(around[other] & candidates.keys() if waiting_for[other] <= FEW else ())}
        candidates |= {other: growth(other) for other in changed if other in waiting}
    return order
