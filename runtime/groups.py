"""
Process groups: the ranks that a collective along some mesh axes runs over.

A *part* is a place in a group: the index, major to minor along the axes, of what a rank holds of a split dim.
torch numbers the members of a group by rising rank instead, its *wire* order. The two differ only where
axes are not in the mesh's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import torch.distributed as dist

from ..ir.mesh import Mesh

Axes = tuple[str, ...]

TIMEOUT = timedelta(seconds=120)
"""How long a collective waits for a rank that died or hangs. torch's own default is half an hour."""


@dataclass(frozen=True)
class Group:
    """
    The ranks along some axes, of which this process is one.

    Args:
        axes: the mesh axes.
        ranks: the members, by their ranks in the job, in the order of their parts.
        part: which of them this process is.
        handle: torch's process group; None for a group of one, which never communicates.
        backend: torch's name of what carries the bytes, ``gloo`` or ``nccl``; empty for a group of one.
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


def make_groups(
    mesh: Mesh, wanted: Iterable[Axes], timeout: timedelta, ranks: Sequence[int] | None = None
) -> dict[Axes, Group]:
    """
    Make the process groups of this rank along each of `wanted`. Every rank of the mesh must call this with the same
    arguments; those of other meshes need not.

    Groups with the same members are made once, and the one of all ranks is torch's default group, which has
    the timeout that the job gave it.

    Args:
        ranks: of the job, in the order of the mesh's own; None where the mesh has all of them.

    Raises:
        ValueError: the mesh has another number of ranks than this job or this list, or lacks an axis.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    me = dist.get_rank() if dist.is_initialized() else 0
    if ranks is None and world != mesh.device_count:
        raise ValueError(f"mesh {mesh} has {mesh.device_count} ranks, this job {world}")
    of_job = tuple(range(world) if ranks is None else ranks)
    if len(of_job) != mesh.device_count or me not in of_job:
        raise ValueError(f"mesh {mesh} of {mesh.device_count} ranks is on {list(of_job)}, and this is rank {me}")
    handles: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    groups: dict[Axes, Group] = {}
    for axes in dict.fromkeys(wanted):
        members = tuple(of_job[rank] for rank in mesh.group(of_job.index(me), axes))
        handle = _handle(handles, members, world, timeout)
        backend = dist.get_backend(handle) if handle is not None else ""
        groups[axes] = Group(axes, members, members.index(me), handle, backend)
    return groups


def _handle(
    handles: dict[tuple[int, ...], dist.ProcessGroup | None],
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
            # Members alone make it: all ranks of a mesh go through its axes in one order, so none waits in a circle.
            group = dist.new_group(list(members), timeout=timeout, use_local_synchronization=True)
            handles[members] = group  # pyright: ignore[reportArgumentType]
    return handles[members]
