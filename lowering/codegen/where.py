"""
The mesh and the parts of temporal axes that the ops of an emitted function run for.

A *grid* is the mesh with devices on all axes, including temporal axes, so that differences between parts of an axis are
computed in the same way as differences between ranks. A rank is several devices of the grid, one per part.
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
"""The grid devices that an op runs on: for each rank, for each part of the enclosing loop (one part without a loop)."""


@dataclass(frozen=True)
class Where:
    """The mesh of a function, and for a loop body the temporal axis of the loop, which calls it once per part."""

    mesh: Mesh
    loop: str | None = None

    @cached_property
    def grid(self) -> Mesh:
        """The grid of the mesh."""
        return grid_of(self.mesh)

    @cached_property
    def temporal(self) -> frozenset[str]:
        """The names of the temporal axes."""
        return frozenset(axis.name for axis in self.mesh.axes if axis.kind is AxisKind.TEMPORAL)

    def devices(self, op: Operation) -> Devices:
        """Return the grid devices that `op` runs on."""
        return _devices(self.mesh, self.loop, tuple(parts_of(op).items()))

    def unsettled(self, op: Operation, sharding: Sharding) -> frozenset[str]:
        """Return the temporal axes along which a value with this sharding has several parts and `op` selects none."""
        settled = {*parts_of(op), self.loop}
        return self.temporal.intersection((*sharding.split_axes, *sharding.partial_axes)) - settled


@lru_cache(maxsize=256)
def grid_of(mesh: Mesh) -> Mesh:
    """Return `mesh` with devices on all axes."""
    return Mesh(tuple(Axis(axis.name, axis.size) for axis in mesh.axes), mesh.name)


@lru_cache(maxsize=1024)
def _devices(mesh: Mesh, loop: str | None, at: tuple[tuple[str, int], ...]) -> Devices:
    grid, parts = grid_of(mesh), range(mesh.axis(loop).size if loop is not None else 1)
    settled = dict(at)

    def device(rank: int, part: int) -> int:
        place: Mapping[str, int] = {**mesh.coordinates(rank), **settled}
        return grid.rank({**place, loop: part} if loop is not None else dict(place))

    return tuple(tuple(device(rank, part) for part in parts) for rank in range(mesh.device_count))
