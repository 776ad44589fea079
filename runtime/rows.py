"""
The buffers of the library's all-gather and reduce-scatter: a row for each rank, all of one length.

A large tensor in equal parts has rows of its own. Where these parts are blocks of its memory, the rows are the tensor,
and nothing is copied; else it is copied once. Small tensors and those in unequal parts share rows, which are as long as
the longest needs. They are put there, and taken from there, by one kernel on a GPU where all parts are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..ir.collectives import ALONE_FROM_BYTES
from .groups import RankGroup
from .pieces import Sizes, copy_all, flatten, piece_shape, unflatten

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Rows:
    """
    What the library is called on, once: flat buffers, of which the longer has a row per rank.

    Args:
        members: the operands in it, by their place among all.
        length: of a row, in elements.
    """

    members: tuple[int, ...]
    length: int
    sent: torch.Tensor
    received: torch.Tensor


class RowLayout:
    """
    How the operands of one collective lie in rows.

    Args:
        group: who takes part; rows are in the order of its ranks, which need not be that of the parts.
        shapes: of each operand, unsplit.
        dims: along which each is split.
        sizes: of the parts of each.
        itemsize: the bytes of an element.
    """

    def __init__(
        self,
        group: RankGroup,
        shapes: Sequence[Sequence[int]],
        dims: Sequence[int],
        sizes: Sequence[Sizes],
        itemsize: int,
    ) -> None:
        self._group, self._shapes, self._dims, self._sizes = group, shapes, dims, sizes
        in_order = group.wire == tuple(range(group.size))
        self._equal = [in_order and len(set(each)) == 1 for each in sizes]
        few, large = len(shapes) == 1, ALONE_FROM_BYTES // itemsize
        alone = [i for i, equal in enumerate(self._equal) if equal and (few or math.prod(shapes[i]) >= large)]
        together = tuple(i for i in range(len(shapes)) if i not in alone)
        self._members = [*((i,) for i in alone), *([together] if together else [])]

    def to_gather(self, tensors: Tensors) -> list[Rows]:
        """What to gather this rank's parts by."""
        made: list[Rows] = []
        for members in self._members:
            length = self._length(members)
            received = tensors[0].new_empty(self._group.size * length)
            made.append(Rows(members, length, flatten([tensors[i] for i in members], length), received))
        return made

    def gathered(self, made: Sequence[Rows]) -> list[torch.Tensor]:
        """The full tensors, of what `to_gather` gave and has arrived."""
        found: dict[int, torch.Tensor] = {}
        for rows in made:
            by_rank = rows.received.view(self._group.size, rows.length)
            if len(rows.members) == 1 and self._equal[rows.members[0]]:
                (i,) = rows.members
                found[i] = self._from_rows(by_rank, i)
            elif all(self._equal[i] and self._in_blocks(i) for i in rows.members):
                found |= self._split(by_rank, rows.members)
            else:
                found |= self._joined(by_rank, rows.members)
        return [found[i] for i in range(len(self._shapes))]

    def to_scatter(self, tensors: Tensors) -> list[Rows]:
        """What to reduce and scatter full tensors by."""
        made: list[Rows] = []
        for members in self._members:
            length = self._length(members)
            if all(self._equal[i] for i in members):
                listed = [self._to_rows(tensors[i], i) for i in members]
                sent = listed[0] if len(listed) == 1 else torch.cat(listed, dim=1)
            else:
                sent = self._padded(tensors, members, length)
            made.append(Rows(members, length, sent.view(-1), tensors[0].new_empty(length)))
        return made

    def scattered(self, made: Sequence[Rows]) -> list[torch.Tensor]:
        """This rank's parts, of what `to_scatter` gave and has arrived: views of it."""
        found: dict[int, torch.Tensor] = {}
        for rows in made:
            shapes = [self._part_shape(i, self._group.part) for i in rows.members]
            found |= zip(rows.members, unflatten(rows.received, shapes), strict=True)
        return [found[i] for i in range(len(self._shapes))]

    def _part_shape(self, i: int, part: int) -> tuple[int, ...]:
        return piece_shape(self._shapes[i], self._dims[i], self._sizes[i][part])

    def _length(self, members: Sequence[int]) -> int:
        parts = range(self._group.size)
        return max(sum(math.prod(self._part_shape(i, part)) for i in members) for part in parts)

    def _in_blocks(self, i: int) -> bool:
        """Whether the parts of an operand are blocks of its memory."""
        return math.prod(self._shapes[i][: self._dims[i]]) == 1

    def _to_rows(self, tensor: torch.Tensor, i: int) -> torch.Tensor:
        """The equal parts of a tensor as rows: a view where they are blocks of its memory."""
        dim, size = self._dims[i], self._sizes[i][0]
        rows = tensor.unflatten(dim, (self._group.size, size)).movedim(dim, 0)
        return rows.reshape(self._group.size, tensor.numel() // self._group.size)

    def _from_rows(self, by_rank: torch.Tensor, i: int) -> torch.Tensor:
        """The reverse."""
        parts = by_rank.view(self._group.size, *self._part_shape(i, 0))
        return parts.movedim(0, self._dims[i]).reshape(self._shapes[i])

    def _split(self, by_rank: torch.Tensor, members: Sequence[int]) -> dict[int, torch.Tensor]:
        """Operands whose equal parts are blocks, by one copy of them all."""
        whole = {i: by_rank.new_empty(self._shapes[i]) for i in members}
        views = [each.view(self._group.size, each.numel() // self._group.size) for each in whole.values()]
        torch.split_with_sizes_copy(by_rank, [view.shape[1] for view in views], dim=1, out=views)
        return whole

    def _joined(self, by_rank: torch.Tensor, members: Sequence[int]) -> dict[int, torch.Tensor]:
        """Operands of any parts: those that are blocks by one copy, each of the others by its own."""
        found: dict[int, torch.Tensor] = {}
        rows = [unflatten(by_rank[wire], [self._part_shape(i, part) for i in members]) for part, wire in self._wires()]
        targets, sources = list[torch.Tensor](), list[torch.Tensor]()
        for i, parts in zip(members, zip(*rows, strict=True), strict=True):
            if self._in_blocks(i):
                found[i] = by_rank.new_empty(self._shapes[i])
                targets += found[i].split(self._sizes[i], self._dims[i])
                sources += parts
            else:
                found[i] = torch.cat(parts, self._dims[i])
        copy_all(targets, sources)
        return found

    def _padded(self, tensors: Tensors, members: Sequence[int], length: int) -> torch.Tensor:
        """Rows of parts of any sizes; what is beyond the shorter is arbitrary."""
        sent = tensors[0].new_empty(self._group.size, length)
        split = [tensors[i].split(self._sizes[i], self._dims[i]) for i in members]
        targets, sources = list[torch.Tensor](), list[torch.Tensor]()
        for part, wire in self._wires():
            pieces = [each[part] for each in split]
            targets += unflatten(sent[wire], [piece.shape for piece in pieces])
            sources += pieces
        copy_all(targets, sources)
        return sent

    def _wires(self) -> list[tuple[int, int]]:
        """The parts, each with the row that it is in."""
        return list(enumerate(self._group.wire))
