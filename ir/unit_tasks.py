"""
The unit tasks of a transfer between meshes, and who holds which part of a value when.

Both the interpreter and the workers carry tasks out; that they do so alike is why this is here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .mesh import Axis, Mesh
from .sharding import Sharding, local_slices


@dataclass(frozen=True)
class Task:
    """
    A unit task of a transfer: one slice of the value goes from one rank to others (cross-mesh 2.2).

    Args:
        part: of the temporal axis; 0 where there is none.
        slice: per dim of the global value, begin and end.
        sender: a rank of the job that holds it.
        receivers: the ranks of the job that want it, in the order in which it is handed on.
    """

    part: int
    slice: tuple[tuple[int, int], ...]
    sender: int
    receivers: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements the slice has."""
        return math.prod(end - begin for begin, end in self.slice)


_CHUNK_BYTES = 256 * 1024
_MOST_CHUNKS = 100


def chunk_count(task: Task, size: int) -> int:
    """
    In how many chunks a task's slice of `size` bytes travels: one to a single receiver; where it is handed on, chunks
    of 256 KiB, or 100 larger ones (K of cross-mesh 3.1).
    """
    return max(1, min(_MOST_CHUNKS, math.ceil(size / _CHUNK_BYTES))) if len(task.receivers) > 1 else 1


@dataclass(frozen=True)
class Grid:
    """
    A mesh with devices on all axes, those of time too, and where those are.

    Args:
        mesh: all of its axes spatial.
        ranks: by device, the rank of the job that it is.
        parts: by device, the part of the temporal axes that it stands for; 0 without such axes.
        times: the temporal axes.
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    parts: tuple[int, ...]
    times: tuple[str, ...] = ()

    @staticmethod
    def of(mesh: Mesh, ranks: Sequence[int]) -> Grid:
        """The grid of a mesh whose own ranks are these ranks of the job."""
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
        """Whether a value comes in parts; if not, it is sent once, as part 0."""
        return not set(self.times).isdisjoint((*sharding.split_axes, *sharding.partial_axes))

    def parts_at(self, at: Mapping[str, int]) -> frozenset[int]:
        """The parts that are at these places of an unrolled temporal axis; all where it says nothing."""
        places = ((part, self.mesh.coordinates(device)) for device, part in enumerate(self.parts))
        return frozenset(part for part, place in places if all(place[axis] == index for axis, index in at.items()))

    @cached_property
    def _devices(self) -> dict[tuple[int, int], int]:
        places = zip(self.ranks, self.parts, strict=True)
        return {place: device for device, place in enumerate(places)}

    def slices(self, shape: Sequence[int], sharding: Sharding, rank: int, part: int) -> tuple[slice, ...]:
        """What the rank `rank` of the job holds of a value at the part `part`; KeyError where it is not of the mesh."""
        return local_slices(shape, sharding, self.mesh, self._devices[rank, part])
