"""
The unit tasks of a transfer between meshes, and the parts of a value that ranks hold.

The interpreter and the workers share this code, so that they run tasks in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .mesh import Axis, Mesh
from .sharding import Sharding, local_slices


@dataclass(frozen=True)
class Task:
    """
    A unit task of a transfer: one slice of the value goes from one rank to others (cross-mesh 2.2).

    Args:
        part: part of the temporal axis, or 0 without such an axis.
        slice: begin and end per dim of the global value.
        sender: rank of the job that holds the slice.
        receivers: ranks of the job that want the slice, in forwarding order.
    """

    part: int
    slice: tuple[tuple[int, int], ...]
    sender: int
    receivers: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements of the slice."""
        return math.prod(end - begin for begin, end in self.slice)


def in_each_part(parts: int, shift: Sequence[int], tasks: Sequence[Task]) -> tuple[Task, ...]:
    """
    Return the tasks of all parts, part by part.

    Args:
        shift: how far a slice moves from one part to the next, in elements per dim.
        tasks: the tasks of part 0.
    """
    return tuple(
        replace(
            task,
            part=part,
            slice=tuple(
                (begin + part * by, end + part * by) for (begin, end), by in zip(task.slice, shift, strict=True)
            ),
        )
        for part in range(parts)
        for task in tasks
    )


_CHUNK_BYTES = 256 * 1024
_MOST_CHUNKS = 100


def chunk_count(task: Task, size: int) -> int:
    """
    Return the number of chunks of a task's slice of `size` bytes: one for a single receiver; if it is forwarded, chunks
    have 256 KiB, or there are 100 larger ones (K of cross-mesh 3.1).
    """
    return max(1, min(_MOST_CHUNKS, math.ceil(size / _CHUNK_BYTES))) if len(task.receivers) > 1 else 1


@dataclass(frozen=True)
class Grid:
    """
    A mesh in which temporal axes have devices too, and the places of these devices.

    Args:
        mesh: mesh whose axes are all spatial.
        ranks: rank of the job, by device.
        parts: part of the temporal axes, by device; 0 without such axes.
        times: names of the temporal axes.
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    parts: tuple[int, ...]
    times: tuple[str, ...] = ()

    @staticmethod
    def of(mesh: Mesh, ranks: Sequence[int]) -> Grid:
        """Return the grid of a mesh whose ranks are these ranks of the job."""
        grid = Mesh(tuple(Axis(axis.name, axis.size) for axis in mesh.axes), mesh.name)
        temporal = [axis.name for axis in mesh.axes if axis not in mesh.spatial]
        devices = range(grid.device_count)
        return Grid(
            grid,
            tuple(ranks[mesh.rank(grid.coordinates(device))] for device in devices),
            tuple(grid.part(device, temporal) for device in devices),
            tuple(temporal),
        )

    def is_over_time(self, sharding: Sharding) -> bool:
        """Whether a value is sent in parts; else it is sent once, as part 0."""
        return not set(self.times).isdisjoint((*sharding.split_axes, *sharding.partial_axes))

    def parts_at(self, at: Mapping[str, int]) -> frozenset[int]:
        """Return the parts at these places of unrolled temporal axes; all parts if there are no places."""
        places = ((part, self.mesh.coordinates(device)) for device, part in enumerate(self.parts))
        return frozenset(part for part, place in places if all(place[axis] == index for axis, index in at.items()))

    @cached_property
    def _devices(self) -> dict[tuple[int, int], int]:
        places = zip(self.ranks, self.parts, strict=True)
        return {place: device for device, place in enumerate(places)}

    def slices(self, shape: Sequence[int], sharding: Sharding, rank: int, part: int) -> tuple[slice, ...]:
        """Return the slices that rank `rank` of the job holds at `part`; raise KeyError if the mesh lacks the rank."""
        return local_slices(shape, sharding, self.mesh, self._devices[rank, part])
