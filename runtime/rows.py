"""
Buffers of the library's all-gather and reduce-scatter: one row per rank, all of equal length.

A large tensor with equal parts has its own rows. If these parts are contiguous blocks, the rows are a view of the
tensor; otherwise it is copied once. Small tensors and tensors with unequal parts share rows, padded to the
longest. On a GPU one kernel packs or unpacks them if all parts are equal.
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
    The flat buffers of one call of the library; the longer buffer has a row per rank.

    Args:
        members: indices of the operands in the buffers.
        length: the elements of a row.
    """

    members: tuple[int, ...]
    length: int
    sent: torch.Tensor
    received: torch.Tensor


class RowLayout:
    """
    The assignment of the operands of a collective to rows.

    Args:
        group: the ranks that take part; rows are in the order of ranks, which may differ from the order of parts.
        shapes: unsplit shape of each operand.
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
        self._equal = [in_order and len(set(operand_sizes)) == 1 for operand_sizes in sizes]
        few, large = len(shapes) == 1, ALONE_FROM_BYTES // itemsize
        alone = [i for i, equal in enumerate(self._equal) if equal and (few or math.prod(shapes[i]) >= large)]
        together = tuple(i for i in range(len(shapes)) if i not in alone)
        self._members = [*((i,) for i in alone), *([together] if together else [])]

    def to_gather(self, tensors: Tensors) -> list[Rows]:
        """Return the buffers to gather this rank's parts."""
        buffers: list[Rows] = []
        for members in self._members:
            length = self._length(members)
            received = tensors[0].new_empty(self._group.size * length)
            buffers.append(Rows(members, length, flatten([tensors[i] for i in members], length), received))
        return buffers

    def gathered(self, made: Sequence[Rows]) -> list[torch.Tensor]:
        """Return the full tensors from the buffers of `to_gather`, after their arrival."""
        whole: dict[int, torch.Tensor] = {}
        for rows in made:
            by_rank = rows.received.view(self._group.size, rows.length)
            if len(rows.members) == 1 and self._equal[rows.members[0]]:
                (i,) = rows.members
                parts = by_rank.view(self._group.size, *self._part_shape(i, 0))
                whole[i] = parts.movedim(0, self._dims[i]).reshape(self._shapes[i])
            elif all(self._equal[i] and self._in_blocks(i) for i in rows.members):
                whole |= self._split(by_rank, rows.members)
            else:
                whole |= self._joined(by_rank, rows.members)
        return [whole[i] for i in range(len(self._shapes))]

    def to_scatter(self, tensors: Tensors) -> list[Rows]:
        """Return the buffers to reduce-scatter full tensors."""
        buffers: list[Rows] = []
        for members in self._members:
            length = self._length(members)
            if all(self._equal[i] for i in members):
                listed = [self._to_rows(tensors[i], i) for i in members]
                sent = listed[0] if len(listed) == 1 else torch.cat(listed, dim=1)
            else:
                sent = self._padded(tensors, members, length)
            buffers.append(Rows(members, length, sent.view(-1), tensors[0].new_empty(length)))
        return buffers

    def scattered(self, made: Sequence[Rows]) -> list[torch.Tensor]:
        """Return this rank's parts as views of the buffers of `to_scatter`, after their arrival."""
        parts: dict[int, torch.Tensor] = {}
        for rows in made:
            shapes = [self._part_shape(i, self._group.part) for i in rows.members]
            parts |= zip(rows.members, unflatten(rows.received, shapes), strict=True)
        return [parts[i] for i in range(len(self._shapes))]

    def _part_shape(self, i: int, part: int) -> tuple[int, ...]:
        return piece_shape(self._shapes[i], self._dims[i], self._sizes[i][part])

    def _length(self, members: Sequence[int]) -> int:
        parts = range(self._group.size)
        return max(sum(math.prod(self._part_shape(i, part)) for i in members) for part in parts)

    def _in_blocks(self, i: int) -> bool:
        """Whether the parts of an operand are contiguous blocks."""
        return math.prod(self._shapes[i][: self._dims[i]]) == 1

    def _to_rows(self, tensor: torch.Tensor, i: int) -> torch.Tensor:
        """Return the equal parts of a tensor as rows, a view if they are contiguous blocks."""
        dim, size = self._dims[i], self._sizes[i][0]
        rows = tensor.unflatten(dim, (self._group.size, size)).movedim(dim, 0)
        return rows.reshape(self._group.size, tensor.numel() // self._group.size)

    def _split(self, by_rank: torch.Tensor, members: Sequence[int]) -> dict[int, torch.Tensor]:
        """Return operands whose equal parts are contiguous blocks, by one copy of all."""
        whole = {i: by_rank.new_empty(self._shapes[i]) for i in members}
        views = [tensor.view(self._group.size, tensor.numel() // self._group.size) for tensor in whole.values()]
        torch.split_with_sizes_copy(by_rank, [view.shape[1] for view in views], dim=1, out=views)
        return whole

    def _joined(self, by_rank: torch.Tensor, members: Sequence[int]) -> dict[int, torch.Tensor]:
        """Return operands with any parts: contiguous blocks are copied together, each other operand separately."""
        whole: dict[int, torch.Tensor] = {}
        rows = [
            unflatten(by_rank[wire], [self._part_shape(i, part) for i in members])
            for part, wire in enumerate(self._group.wire)
        ]
        targets, sources = list[torch.Tensor](), list[torch.Tensor]()
        for i, parts in zip(members, zip(*rows, strict=True), strict=True):
            if self._in_blocks(i):
                whole[i] = by_rank.new_empty(self._shapes[i])
                targets += whole[i].split(self._sizes[i], self._dims[i])
                sources += parts
            else:
                whole[i] = torch.cat(parts, self._dims[i])
        copy_all(targets, sources)
        return whole

    def _padded(self, tensors: Tensors, members: Sequence[int], length: int) -> torch.Tensor:
        """Pack parts of any sizes into rows; the padding of shorter rows is arbitrary."""
        sent = tensors[0].new_empty(self._group.size, length)
        split = [tensors[i].split(self._sizes[i], self._dims[i]) for i in members]
        targets, sources = list[torch.Tensor](), list[torch.Tensor]()
        for part, wire in enumerate(self._group.wire):
            pieces = [parts[part] for parts in split]
            targets += unflatten(sent[wire], [piece.shape for piece in pieces])
            sources += pieces
        copy_all(targets, sources)
        return sent
