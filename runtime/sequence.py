"""
The checked mode of a communicator: the ranks of the mesh compare each collective before it starts.

Without it two ranks that run different programs may exchange bytes that fit by chance, with silently wrong
numbers: a shape or dtype of the same size, or two collectives in another order.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..ir.mesh import Mesh
from .groups import Axes, RankGroup
from .requests import Request


class SequenceError(RuntimeError):
    """Ranks that are about to run different collectives."""


class Sequence:
    """
    Counts the collectives of a program and compares each over all ranks of its mesh, before it starts.

    Args:
        everyone: group along all axes of `mesh`.
    """

    def __init__(self, mesh: Mesh, everyone: RankGroup) -> None:
        self._mesh, self._everyone = mesh, everyone
        self._count = 0

    def check(self, request: Request) -> None:
        """
        Compare the requests of all ranks.

        Raises:
            SequenceError: on every rank, if two requests differ; the message names both.
        """
        if self._everyone.size == 1:
            return
        tags_by_wire: list[Any] = [None] * self._everyone.size
        dist.all_gather_object(tags_by_wire, (*request.tag(), str(request)), self._everyone.handle)
        tags = [tags_by_wire[wire] for wire in self._everyone.wire]
        if (pair := self._difference(tags, request.axes)) is not None:
            ranks = [self._everyone.ranks[part] for part in pair]
            first, other = (f"{tags[part][2]} with {_compared(*tags[part][:2])}" for part in pair)
            raise SequenceError(
                f"collective number {self._count} differs: rank {ranks[0]} is about to start {first}, "
                f"rank {ranks[1]} {other}; the ranks run different programs"
            )
        self._count += 1

    def _difference(self, tags: list[Any], axes: Axes) -> tuple[int, int] | None:
        """Return two ranks of the mesh whose tags differ but must be equal."""
        for rank, (everywhere, _, _) in enumerate(tags):
            if everywhere != tags[0][0]:
                return 0, rank
        for group in self._mesh.groups(axes):
            for rank in group:
                if tags[rank][1] != tags[group[0]][1]:
                    return group[0], rank
        return None


def _compared(everywhere: Any, here: Any) -> str:
    *options, _, dtype = everywhere
    shapes, *sizes = here
    listed = [f"{name}={value!r}" for name, value in options if value and name not in ("kind", "axes")]
    listed += [f"sizes {list(size)}" for size in sizes if size is not None]
    return ", ".join((f"{dtype} of shapes {[list(shape) for shape in shapes]}", *listed))
