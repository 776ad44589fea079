"""
The memory that a collective needs besides its operand and its result, as the runtime's direct methods
(`runtime/collectives`) and phases (`runtime/hierarchical`) use it.

Parts that are contiguous blocks of the full value are sent and received in place. Other parts are copied into a message
before they are sent, and received in extra memory, from where they are copied into the result at the end. Parts that
are reduced are received in extra memory in any case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import OpResult, SSAValue

from ...dialects.aten import AtenOp
from ...ir.collective_cost import Method
from ...ir.collectives import ALONE_FROM_BYTES, CollectiveKind, Step
from ...ir.mesh import Mesh
from ...ir.sharding import Sharding, largest_local_shape

_PERMUTING = ("t", "transpose.int", "permute")


@dataclass(frozen=True)
class CollectiveMemory:
    """
    The memory that one collective needs besides its operand and its result.

    Args:
        of_operand, of_result: bytes held from start to end, as shares of the local operand and of the local result.
        is_late: whether the result gets its memory only at the end.
        in_place: whether an all-reduce that may overwrite its operand leaves its result there.
        may_share: whether the result may be the operand itself, since nothing is sent.
    """

    of_operand: float = 0.0
    of_result: float = 0.0
    is_late: bool = False
    in_place: bool = False
    may_share: bool = False


def collective_memory(
    step: Step,
    shape: Sequence[int],
    mesh: Mesh,
    is_permuted: bool = False,
    bucket_bytes: float = math.inf,
    method: Method = "flat",
) -> CollectiveMemory:
    """
    Return the extra memory of one step on a value of global `shape`.

    Args:
        is_permuted: whether the operand's dims lie in another order in memory.
        bucket_bytes: bytes of the local operand if it is reduced together with others, else infinity.
        method: method that carries out the step.
    """
    spatial = {axis.name for axis in mesh.spatial}
    if method == "hierarchical" and step.kind is not CollectiveKind.ALL_REDUCE:
        extra = _in_phases(step.kind, 1.0 / mesh.parts(step.axes[-1:]))
    else:
        extra = _beside(step, shape, mesh, is_permuted, bucket_bytes, mesh.parts(a for a in step.axes if a in spatial))
    alone = step.kind.is_local or (mesh.parts(step.axes) == 1 and spatial.issuperset(step.axes))
    return replace(extra, may_share=True) if alone else extra


def _beside(
    step: Step, shape: Sequence[int], mesh: Mesh, is_permuted: bool, bucket_bytes: float, ranks: int
) -> CollectiveMemory:
    """Return the extra memory of a direct method in a group of `ranks`, without `may_share`."""
    others = 1.0 - 1.0 / ranks
    match step.kind:
        case CollectiveKind.ALL_REDUCE:
            return CollectiveMemory(in_place=not others or (not is_permuted and bucket_bytes >= ALONE_FROM_BYTES))
        case CollectiveKind.ALL_GATHER:
            if is_block(shape, step.target, step.dim, mesh):
                return CollectiveMemory()
            return CollectiveMemory(of_result=others, is_late=True)
        case CollectiveKind.REDUCE_SCATTER:
            sent = 0.0 if is_block(shape, step.source, step.dim, mesh) and not is_permuted else others
            return CollectiveMemory(of_operand=others + sent, is_late=True)
        case CollectiveKind.ALL_TO_ALL:
            sent = 0.0 if is_block(shape, step.source, step.to_dim, mesh) and not is_permuted else 1.0
            arrives = is_block(shape, step.target, step.dim, mesh)
            return CollectiveMemory(sent, 0.0 if arrives else others, is_late=not arrives)
        case _:
            return CollectiveMemory()


def _in_phases(kind: CollectiveKind, part: float) -> CollectiveMemory:
    """Return the extra memory of the messages before and after each phase; one phase has a `part` of the full value."""
    match kind:
        case CollectiveKind.ALL_GATHER:
            return CollectiveMemory(of_result=1.0 + part, is_late=True)
        case CollectiveKind.REDUCE_SCATTER:
            return CollectiveMemory(of_operand=2.0 + 2.0 * part, is_late=True)
        case _:
            return CollectiveMemory(of_operand=3.0, of_result=1.0, is_late=True)


def is_block(shape: Sequence[int], sharding: Sharding, dim: int | None, mesh: Mesh) -> bool:
    """Return whether a part along `dim` of a device's local value is one contiguous block of memory."""
    return dim is not None and math.prod(largest_local_shape(tuple(shape), sharding, mesh)[:dim]) == 1


def is_permuted(value: SSAValue) -> bool:
    """Return whether a value is a view of another value with permuted dims."""
    if not isinstance(value, OpResult) or not isinstance(value.op, AtenOp):
        return False
    return value.op.overload in _PERMUTING and not is_permuted(value.op.args[0])
