"""
Messages of dual ascent, laid out so that equal nodes of equal layers are visited as one array.

The nodes of a *family* are visited together. No two are adjacent, and they have equal numbers of states and equal
tables by *slot* (an edge of a node; slots to earlier nodes in the order come first). Nodes are the last dim of every
array, so that the arithmetic runs along many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from .problem import Costs
from .reduction import Graph
from .tables import Handle

Places = NDArray[np.int64]
Slots = dict[tuple[int, int], int]
"""The slot of each (node, neighbour)."""

Seen = tuple[tuple[int, ...], Costs]
"""Nodes visited together and the costs of their states at that moment; shape (states, nodes)."""


@dataclass(frozen=True, slots=True)
class NodeFamily:
    """
    Nodes that are visited together; the first `behind` slots lead to nodes earlier in the order.

    `tables` have a row per state of the neighbour; an entry of `members` is a node, then its neighbours by slot.
    """

    behind: int
    tables: tuple[Handle, ...]
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Pull:
    """
    The update of one slot of a family: the minimum over the neighbour's states of `table` minus the outward messages.

    `table` has shape (states of neighbour, states of node, 1), `outward` (states of neighbour, 1, nodes) holds the
    positions of the outward messages, and `inward` (states of node, nodes) receives the result.
    """

    table: Costs
    outward: Places
    inward: Costs


@dataclass(frozen=True, slots=True)
class _FamilyMessages:
    """
    A family's costs (states, nodes) and the messages into it (slots, states, nodes).

    Each node hands `share` of its costs to every edge ahead.
    """

    nodes: tuple[int, ...]
    unary: Costs
    inward: Costs
    share: float
    behind: int
    pulls: tuple[_Pull, ...]


class Messages:
    """The messages into the nodes of `families`, zero at first."""

    def __init__(self, graph: Graph, families: Sequence[NodeFamily], slots: Slots) -> None:
        self.slots = slots
        self.places: dict[int, Places] = {}
        """Where in `flat` the messages into a node lie; shape (slots, states)."""
        blocks: list[Places] = []
        size = 0
        for family in families:
            shape = len(family.tables), graph.size(family.members[0][0]), len(family.members)
            blocks.append(np.arange(size, size + prod(shape)).reshape(shape))
            size += prod(shape)
            self.places.update((node, blocks[-1][:, :, i]) for i, (node, *_) in enumerate(family.members))
        self.flat = np.zeros(size)
        self._groups = [self._group(graph, family, block) for family, block in zip(families, blocks, strict=True)]

    def _group(self, graph: Graph, family: NodeFamily, block: Places) -> _FamilyMessages:
        inward = self.flat[block.flat[0] : block.flat[0] + block.size].reshape(block.shape)
        nodes = tuple(node for node, *_ in family.members)
        pulls: list[_Pull] = []
        for slot, table in enumerate(family.tables):
            others = (member[slot + 1] for member in family.members)
            outward = [self.places[other][self.slots[other, node]] for node, other in zip(nodes, others, strict=True)]
            pulls.append(_Pull(graph.store[table][:, :, None], np.stack(outward, axis=1)[:, None, :], inward[slot]))
        return _FamilyMessages(
            nodes,
            np.stack([graph.store[graph.unary[node]] for node in nodes], axis=1),
            inward,
            1 / max(family.behind, len(family.tables) - family.behind),
            family.behind,
            tuple(pulls),
        )

    def forward(self) -> float:
        """Visit all nodes in order and return the bound."""
        return sum(self._visit(group, slice(group.behind), slice(group.behind, None))[0] for group in self._groups)

    def backward(self) -> tuple[float, list[Seen]]:
        """Visit all nodes in reverse order and return the bound and the costs seen at each visit."""
        bound, seen = 0.0, list[Seen]()
        for group in reversed(self._groups):
            gained, costs = self._visit(group, slice(group.behind, None), slice(group.behind))
            bound += gained
            seen.append((group.nodes, costs))
        return bound, seen

    def _visit(self, group: _FamilyMessages, behind: slice, ahead: slice) -> tuple[float, Costs]:
        """Visit the nodes of `group`; return the increase of the bound and the costs of the nodes."""
        for pull in group.pulls[behind]:
            np.minimum.reduce(pull.table - self.flat.take(pull.outward), axis=0, out=pull.inward)
        costs = group.unary + np.add.reduce(group.inward, axis=0)
        pushed = group.inward[ahead]
        pushed -= group.share * costs
        return (1 - group.share * len(pushed)) * float(np.minimum.reduce(costs, axis=0).sum()), costs
