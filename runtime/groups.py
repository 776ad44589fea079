"""
Process groups: the ranks that a collective along some mesh axes runs over.

A *part* is the index of a rank in a group, major to minor along the axes: a rank holds this part of a split dim.
torch numbers the members of a group by rising rank instead, its *wire* order. The two orders differ only for
axes that are not in the mesh's order.
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


def world_size() -> int:
    """Return the number of ranks in the job; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def job_rank() -> int:
    """Return the rank of this process in the job; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


TIMEOUT = timedelta(minutes=30)
"""How long a collective waits for a dead or hung rank if no watch has ended the job before (`watch`)."""

UNWATCHED = timedelta(seconds=120)
"""How long a collective waits in a job without a watch."""


@dataclass(frozen=True)
class RankGroup:
    """
    The ranks along some axes, including this process.

    Args:
        ranks: the members, by their ranks in the job, in the order of their parts.
        handle: torch's process group, or None for a group of one rank, which never communicates.
        backend: ``gloo`` or ``nccl``; empty for a group of one rank.
    """

    axes: Axes
    ranks: tuple[int, ...]
    part: int
    handle: dist.ProcessGroup | None = None
    backend: str = ""

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @cached_property
    def wire(self) -> tuple[int, ...]:
        """The index of each part in torch's order."""
        ordered = sorted(self.ranks)
        return tuple(ordered.index(rank) for rank in self.ranks)

    def __str__(self) -> str:
        return f"axes {list(self.axes)} (ranks {list(self.ranks)})"


@dataclass(frozen=True)
class RankLayout:
    """
    The ranks of the job that form a mesh, and the axes of its collectives.

    Args:
        ranks: ranks in the job, in the order of the mesh.
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    groups: tuple[Axes, ...]


Handles: TypeAlias = "dict[tuple[int, ...], dist.ProcessGroup | None]"
"""Process groups by their sorted members."""


def make_groups(
    job: Sequence[RankLayout], timeout: timedelta, handles: Handles | None = None, device: torch.device = CPU
) -> dict[Axes, RankGroup]:
    """
    Create the process groups of all meshes of a job, and return the groups of this rank. Every rank must call this with
    the same arguments.

    Groups with the same members are created once, and the group of all ranks is torch's default group, which has
    the job's timeout. NCCL connects a group in its first collective and blocks until all of its ranks
    arrive, so each new group runs a collective here, in the same order on all ranks.

    Args:
        handles: existing groups, which keep their timeouts; new groups are added.

    Raises:
        ValueError: a mesh does not fit its ranks or the job, or lacks an axis; or the job's group has no backend for
            the device.
    """
    world, me = world_size(), job_rank()
    handles = handles if handles is not None else {}
    connected = set(handles)
    groups: dict[Axes, RankGroup] = {}
    for layout in job:
        if len(layout.ranks) != layout.mesh.device_count or not set(layout.ranks) <= set(range(world)):
            raise ValueError(
                f"mesh {layout.mesh} has {layout.mesh.device_count} ranks, but is placed on ranks "
                f"{list(layout.ranks)} of a job of {world} ranks"
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


def _handle(handles: Handles, ranks: tuple[int, ...], world: int, timeout: timedelta) -> dist.ProcessGroup | None:
    members = tuple(sorted(ranks))
    if members not in handles:
        if len(members) == 1:
            handles[members] = None
        elif len(members) == world:
            handles[members] = dist.group.WORLD
        else:
            # A rank outside the group gets a placeholder, and never looks it up.
            group = dist.new_group(list(members), timeout=timeout)
            handles[members] = group  # pyright: ignore[reportArgumentType]
    return handles[members]
