"""
The checked mode of a communicator: before each collective the ranks compare what they are about to do.

Without it two ranks that run different programs exchange bytes that fit by chance, and the numbers are
silently
wrong: a shape or dtype of the same size, or two collectives in another order.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .groups import Group
from .requests import Request


class SequenceError(RuntimeError):
    """Ranks that are about to run different collectives."""


class Sequence:
    """Counts the collectives of a program and compares each over all ranks, before it starts."""

    def __init__(self) -> None:
        self._count = 0

    def check(self, group: Group, request: Request) -> None:
        """
        Compare a request with every other rank's.

        Raises:
            SequenceError: one differs; the message names both.
        """
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world == 1:
            return
        everywhere, here = request.tag()
        tags: list[Any] = [None] * world
        dist.all_gather_object(tags, (self._count, everywhere, here, str(request)))
        mine = dist.get_rank()
        for rank, (_, others, theirs, text) in enumerate(tags):
            if others != everywhere or (rank in group.ranks and theirs != here):
                raise SequenceError(
                    f"collective number {self._count} differs: rank {mine} is about to start {request} with "
                    f"{_told(everywhere, here)}, rank {rank} {text} with {_told(others, theirs)}; "
                    "the ranks run different programs"
                )
        self._count += 1


def _told(everywhere: Any, here: Any) -> str:
    *options, _, dtype = everywhere
    shapes, *sizes = here
    listed = [f"{name}={value!r}" for name, value in options if value and name not in ("kind", "axes")]
    listed += [f"sizes {list(size)}" for size in sizes if size is not None]
    return ", ".join((f"{dtype} of shapes {[list(shape) for shape in shapes]}", *listed))
