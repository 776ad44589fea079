"""The ratios of a step function, in the attribute `spmd.ratios`, and the segments of its ops."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from ..ir.mesh import Mesh
from ..ir.ratios import EVEN, Ratios
from .kinds import entries_of
from .mesh_ops import find_mesh
from .sharding_attrs import MeshRatios, RatiosAttr

RATIOS = "spmd.ratios"
"""On a function: the list of its `#spmd.ratios`, one per mesh (and segment) whose shares are not even."""

SEGMENT = "spmd.segment"
"""On an op: the number of its segment of the model; 0 where it is absent."""


PIECES = "spmd.pieces"
"""
On an argument: by dim, the upper limit on its number of indivisible pieces. Needed where another function with the
same argument ties more dims together.
"""


def ratios_of(func: FuncOp, mesh: Mesh) -> dict[int, Ratios]:
    """Return the ratios of a function on `mesh`, by segment; segment 0 is always present, even by default."""
    by_segment = {entry.segment: entry.ratios for entry in _listed(func) if entry.mesh == mesh.name}
    return {0: EVEN, **by_segment}


def set_ratios(func: FuncOp, mesh: Mesh, ratios: dict[int, Ratios]) -> None:
    """Replace the ratios of a function on `mesh`, given by segment."""
    others = [RatiosAttr(entry) for entry in _listed(func) if entry.mesh != mesh.name]
    ours = [RatiosAttr.of(mesh.name, shares, segment) for segment, shares in sorted(ratios.items()) if shares]
    func.attributes.pop(RATIOS, None)
    if others or ours:
        func.attributes[RATIOS] = ArrayAttr([*others, *ours])


def segment_of(op: Operation) -> int:
    """Return the segment of an op."""
    attribute = op.attributes.get(SEGMENT)
    return attribute.value.data if isinstance(attribute, IntegerAttr) else 0


def verify_ratios(func: FuncOp) -> None:
    """Raise VerifyException unless the ratios of a function fit its meshes."""
    if (listed := func.attributes.get(RATIOS)) is None:
        return
    for entry in entries_of(listed) or (listed,):
        if not isinstance(entry, RatiosAttr):
            raise VerifyException(f"{RATIOS} is {listed}, expected a list of #spmd.ratios")
        try:
            entry.data.ratios.verify(find_mesh(func, entry.data.mesh))
        except ValueError as error:
            raise VerifyException(f"{RATIOS}: {error}") from error


def _listed(func: FuncOp) -> Iterator[MeshRatios]:
    for entry in entries_of(func.attributes.get(RATIOS)) or ():
        if isinstance(entry, RatiosAttr):
            yield entry.data
