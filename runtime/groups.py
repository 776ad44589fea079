"""
Process groups: the ranks that a collective along some mesh axes runs over.

A *part* is a place in a group: the index, major to minor along the axes, of what a rank holds of a split dim.
torch numbers the members of a group by rising rank instead, its *wire* order. The two differ only where
axes are not in the mesh's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TypeAlias

import torch
import torch.distributed as dist

from ..ir.mesh import Mesh
from .rank_devices import CPU, backend_of

Axes = tuple[str, ...]

TIMEOUT = timedelta(minutes=30)
"""How long a collective waits for a rank that died or hangs, where no watch has ended the job before (`watch`)."""

UNWATCHED = timedelta(seconds=120)
"""The same in a job without a watch."""


@dataclass(frozen=True)
class RankGroup:
    """
    The ranks along some axes, of which this process is one.

    Args:
        axes: the mesh axes.
        ranks: the members, by their ranks in the job, in the order of their parts.
        part: which of them this process is.
        handle: torch's process group; None for a group of one, which never communicates.
        backend: what carries the bytes, ``gloo`` or ``nccl``; empty for a group of one.
    """

    axes: Axes
    ranks: tuple[int, ...]
    part: int
    handle: dist.ProcessGroup | None = None
    backend: str = ""

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    @cached_property
    def wire(self) -> tuple[int, ...]:
        """For each part, its place in torch's order."""
        ordered = sorted(self.ranks)
        return tuple(ordered.index(rank) for rank in self.ranks)

    def __str__(self) -> str:
        return f"axes {list(self.axes)} (ranks {list(self.ranks)})"


@dataclass(frozen=True)
class RankLayout:
    """
    A mesh on ranks of the job, and the axes that its collectives run along.

    Args:
        ranks: in the order of the mesh's own.
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    groups: tuple[Axes, ...]


Handles: TypeAlias = "dict[tuple[int, ...], dist.ProcessGroup | None]"
"""Process groups by their members."""


def make_groups(
    job: Sequence[RankLayout], timeout: timedelta, handles: Handles | None = None, device: torch.device = CPU
) -> dict[Axes, RankGroup]:
    """
    Make the process groups of all meshes of a job; those of this rank. Every rank must call this with the same
    arguments.

    Groups with the same members are made once, and the one of all ranks is torch's default group, which has
    the timeout that the job gave it. NCCL connects a group in its first collective and blocks until all of its ranks
    are there: so each has one here, in one order on all ranks.

    Args:
        handles: groups that are there, to which new ones are added; they have the timeout that they were made with.
        device: of the tensors that they carry.

    Raises:
        ValueError: a mesh has another number of ranks than it is given or the job has, or lacks an axis; the job's
            group has no backend for the device.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    me = dist.get_rank() if dist.is_initialized() else 0
    handles = handles if handles is not None else {}
    connected = set(handles)
    groups: dict[Axes, RankGroup] = {}
    for layout in job:
        if len(layout.ranks) != layout.mesh.device_count or not set(layout.ranks) <= set(range(world)):
            raise ValueError(
                f"mesh {layout.mesh} of {layout.mesh.device_count} ranks is on {list(layout.ranks)} of a job of {world}"
            )
        for axes in dict.fromkeys(layout.groups):
            for group in layout.mesh.groups(axes):
                ranks = tuple(layout.ranks[rank] for rank in group)
                handle = _handle(handles, ranks, world, timeout)
                if me in ranks:
                    backend = backend_of(device, handle) if handle is not None else ""
                    groups[axes] = RankGroup(axes, ranks, ranks.index(me), handle, backend)
    if device.type == "cuda":
        for handle in (handle for members, handle in handles.items() if members not in connected and me in members):
            if handle is not None:
                dist.all_reduce(torch.zeros(1, device=device), group=handle)
    return groups


def _handle(
    handles: Handles,
    ranks: tuple[int, ...],
    world: int,
    timeout: timedelta,
) -> dist.ProcessGroup | None:
    members = tuple(sorted(ranks))
    if members not in handles:
        if len(members) == 1:
            handles[members] = None
        elif len(members) == world:
            handles[members] = dist.group.WORLD
        else:
            # A rank outside the group gets a placeholder, which it never looks up.
            group = dist.new_group(list(members), timeout=timeout)
            handles[members] = group  # pyright: ignore[reportArgumentType]
    return handles[members]
