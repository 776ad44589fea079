"""
The mesh and the temporal axes that the ops of an emitted function run for.

A *grid* is the mesh with devices on all axes, temporal ones too: what differs between the parts of an axis is worked
out as what differs between ranks is. A rank is then several devices of the grid, one per part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from xdsl.ir import Operation

from ...dialects.placed import parts_of
from ...ir.mesh import Axis, AxisKind, Mesh
from ...ir.sharding import Sharding

Devices = tuple[tuple[int, ...], ...]
"""The devices of a grid on which an op runs: by rank, by part of the loop that it is in (one where it is in none)."""


@dataclass(frozen=True)
class Where:
    """
    The mesh of a function, and the temporal axis whose parts it is called for, one by one, if it is a loop's body.
    """

    mesh: Mesh
    loop: str | None = None

    @cached_property
    def grid(self) -> Mesh:
        """The mesh with devices on all axes."""
        return grid_of(self.mesh)

    @cached_property
    def temporal(self) -> frozenset[str]:
        """The temporal axes."""
        return frozenset(axis.name for axis in self.mesh.axes if axis.kind is AxisKind.TEMPORAL)

    def devices(self, op: Operation) -> Devices:
        """Those on which `op` runs."""
        return _devices(self.mesh, self.loop, tuple(parts_of(op).items()))

    def unsettled(self, op: Operation, sharding: Sharding) -> frozenset[str]:
        """The temporal axes of which a value spread so has several parts at `op`, and nothing says which is meant."""
        settled = {*parts_of(op), self.loop}
        return self.temporal.intersection((*sharding.split_axes, *sharding.partial_axes)) - settled


@lru_cache(maxsize=256)
def grid_of(mesh: Mesh) -> Mesh:
    """`mesh` with devices on all axes."""
    return Mesh(tuple(Axis(axis.name, axis.size) for axis in mesh.axes), mesh.name)


@lru_cache(maxsize=1024)
def _devices(mesh: Mesh, loop: str | None, at: tuple[tuple[str, int], ...]) -> Devices:
    grid, parts = grid_of(mesh), range(mesh.axis(loop).size if loop is not None else 1)
    settled = dict(at)

    def device(rank: int, part: int) -> int:
        place: Mapping[str, int] = {**mesh.coordinates(rank), **settled}
        return grid.rank({**place, loop: part} if loop is not None else dict(place))

    return tuple(tuple(device(rank, part) for part in parts) for rank in range(mesh.device_count))
