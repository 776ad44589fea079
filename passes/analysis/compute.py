"""What an op does and costs on a device, by signature."""

from __future__ import annotations

import math
from collections.abc import Collection

from xdsl.ir import SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, dtype_of, element_bytes, shape_of
from ...dialects.train import TrainOp
from ...ir import op_cost
from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ...ir.op_cost import OpWork
from ...ir.ops.spec import OpSpec
from ...ir.rules import Rule, Value
from ...ir.sharding import Sharding, largest_local_shape, local_shape
from ...ir.signatures import Signature, local_sizes, rank_sizes

UPDATE, OPAQUE = "update", "opaque"
"""The classes of cost of the updates of parameters, and of ops without a row."""

_UNKNOWN = OpSpec("", (), "() -> ()")


def spec_of(op: ComputeOp) -> OpSpec:
    """The op's row of the table; one of no distinction for ops that have none."""
    return op.spec if isinstance(op, AtenOp) else _UNKNOWN


def is_contraction(op: ComputeOp) -> bool:
    """Whether the op does many operations per element: products of matrices, attention, convolutions."""
    return bool(spec_of(op).flops)


def local_bytes(value: SSAValue, sharding: Sharding, mesh: Mesh) -> int:
    """The bytes of the largest part of a value that a device holds."""
    size = element_bytes(value)
    for extent in largest_local_shape(shape_of(value), sharding, mesh):
        size *= extent
    return size


def op_flops(op: ComputeOp, signature: Signature, mesh: Mesh, rank: int | None = None) -> float:
    """The floating-point operations of the op on `rank`; None: on the device with the largest share."""
    rule, spec = op.rule(), spec_of(op)
    sizes = local_sizes(rule, signature, mesh) if rank is None else rank_sizes(rule, signature, mesh, rank)
    return spec.flop_count(rule, sizes)


def op_bytes(op: ComputeOp, signature: Signature, mesh: Mesh, rank: int | None = None) -> float:
    """The bytes that the op reads and writes on `rank`, or with the largest share; none for a view."""
    if spec_of(op).view:
        return 0.0
    pairs = list(zip((*op.args, *op.outs), (*signature.operands, *signature.results), strict=True))
    for index in _looked_up(op.rule()):
        # Of a table that is looked up, as much is read as is found.
        pairs[index] = pairs[len(op.args)]
    if rank is None:
        return float(sum(local_bytes(value, sharding, mesh) for value, sharding in pairs))
    shapes = ((value, local_shape(shape_of(value), sharding, mesh, rank)) for value, sharding in pairs)
    return float(sum(element_bytes(value) * math.prod(shape) for value, shape in shapes))


def _looked_up(rule: Rule) -> tuple[int, ...]:
    """The operands that have an indexed factor which is found in them alone."""
    if not rule.indexed or any(_has(value, rule.indexed) for value in rule.results):
        return ()
    return tuple(index for index, value in enumerate(rule.operands) if _has(value, rule.indexed))


def _has(value: Value, factors: Collection[str]) -> bool:
    return any(factor in factors for dim in value for factor in dim)


def op_work(op: ComputeOp, signature: Signature, mesh: Mesh, rank: int | None = None) -> OpWork:
    """What the op does on `rank` with its own part; None: on the device with the largest share."""
    flops, moved = op_flops(op, signature, mesh, rank), op_bytes(op, signature, mesh, rank)
    return OpWork(family_of(op), work_dtype(op), flops, moved)


def family_of(op: ComputeOp) -> str:
    """The op's class of cost: the family of its row, `update` of a parameter, or `opaque`."""
    return UPDATE if isinstance(op, TrainOp) else spec_of(op).family or OPAQUE


def work_dtype(op: ComputeOp) -> str:
    """The dtype that an op is taken to compute in: its first operand's."""
    values = op.args or op.outs
    return dtype_of(values[0]) if values else "float32"


def op_seconds(op: ComputeOp, signature: Signature, cluster: Cluster) -> float:
    """
    The time of an op until the last rank is done.

    Of an even split every rank is taken to have the largest part.
    """
    if is_uneven(signature):
        return max(rank_seconds(op, signature, cluster))
    work = op_work(op, signature, cluster.mesh)
    return max(op_cost.op_seconds(device, work) for device in cluster.kinds_used)


def rank_seconds(op: ComputeOp, signature: Signature, cluster: Cluster) -> list[float]:
    """The time of each rank, with its own part on its own device; a rank without a part takes none."""
    ranks = range(cluster.mesh.device_count)
    return [op_cost.op_seconds(cluster.device(rank), op_work(op, signature, cluster.mesh, rank)) for rank in ranks]


def is_uneven(signature: Signature) -> bool:
    """Whether some dim is split at boundaries of its own."""
    return any(d.offsets is not None for s in (*signature.operands, *signature.results) for d in s.dims)

