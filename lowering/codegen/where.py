"""
The mesh and the parts of temporal axes that the ops of an emitted function run for.

A *grid* is the mesh with devices on all axes, including temporal axes, so that differences between parts of an axis are
computed in the same way as differences between ranks. A rank is several devices of the grid, one per part.
"""

from __future__ import annotations

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
        """The mesh with devices on all axes."""
        return Mesh(tuple(Axis(axis.name, axis.size) for axis in self.mesh.axes), self.mesh.name)

    @cached_property
    def temporal(self) -> frozenset[str]:
        """The names of the temporal axes."""
        return frozenset(axis.name for axis in self.mesh.axes if axis.kind is AxisKind.TEMPORAL)

    def devices(self, op: Operation) -> Devices:
        """Return the grid devices that `op` runs on."""
        return _devices(self, tuple(parts_of(op).items()))

    def unsettled(self, op: Operation, sharding: Sharding) -> frozenset[str]:
        """Return the temporal axes along which a value with this sharding has several parts and `op` selects none."""
        settled = {*parts_of(op), self.loop}
        return self.temporal.intersection((*sharding.split_axes, *sharding.partial_axes)) - settled


@lru_cache(maxsize=1024)
def _devices(where: Where, at: tuple[tuple[str, int], ...]) -> Devices:
    mesh, loop = where.mesh, where.loop
    by_part: list[dict[str, int]] = [{}] if loop is None else [{loop: part} for part in range(mesh.axis(loop).size)]
    return tuple(
        tuple(where.grid.rank({**mesh.coordinates(rank), **dict(at), **part}) for part in by_part)
        for rank in range(mesh.device_count)
    )
