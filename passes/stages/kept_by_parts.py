"""The bytes that fragments allocate on a stage for each part, until later fragments of the part have used them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from xdsl.dialects.func import FuncOp

from ...dialects.compute import element_bytes, shape_of
from ...dialects.pipe import Action, FragmentOp, Slot, TransferOp
from ...dialects.placed import sharding_of
from ...dialects.staged import Stages
from ...ir.mesh import Mesh
from ..analysis.memory import local_bytes_by_part


def taken_by_parts(func: FuncOp, meshes: Sequence[Mesh], *, least: bool = False) -> Mapping[str, float]:
    """
    Return by fragment the bytes that one part allocates, less the bytes that it frees as their last user.

    Args:
        meshes: the meshes of the stages.
        least: whether to count each value on the rank with the smallest shard; by default on the rank with the largest.
    """
    stages, taken = Stages(func), defaultdict[str, float](float)
    fragments = [op for op in func.body.block.ops if isinstance(op, FragmentOp)]
    place = {op: index for index, op in enumerate(fragments)}
    inside = {inner: op for op in fragments for inner in op.body.block.ops}
    for op in func.body.block.ops:
        if not isinstance(op, FragmentOp | TransferOp):
            continue
        for value in op.results:
            using = {inside[use.operation] for use in value.uses if use.operation in inside}
            if (stage := stages.of_value(value)) is None or not (users := sorted(using, key=lambda op: place[op])):
                continue
            held = local_bytes_by_part(shape_of(value), element_bytes(value), sharding_of(value), meshes[stage])
            size = float(held.min() if least else held.max())
            first = op if isinstance(op, FragmentOp) else users[0]
            taken[first.label.data] += size
            taken[users[-1].label.data] -= size
    return taken


def most_taken(slots: Sequence[Slot], taken: Mapping[str, float]) -> float:
    """Return the most bytes that parts hold on a stage at any time of its schedule."""
    return max(accumulate(taken.get(slot.label, 0.0) for slot in slots if slot.action is Action.RUN), default=0.0)
