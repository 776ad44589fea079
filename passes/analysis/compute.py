"""What an op costs on a device: the roofline, by signature."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from xdsl.ir import SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, dtype_of, element_bytes, shape_of
from ...ir.cluster import Cluster, Device
from ...ir.mesh import Mesh
from ...ir.ops.spec import OpSpec
from ...ir.rules import Rule, Value
from ...ir.sharding import Sharding, largest_local_shape, local_shape
from ...ir.signatures import Signature, local_sizes, rank_sizes

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


def op_seconds(op: ComputeOp, signature: Signature, cluster: Cluster) -> float:
    """
    The roofline time, max(flops / rate, bytes / bandwidth) + launch, until the last rank is done.

    Of an even split every rank is taken to have the largest part.
    """
    if spec_of(op).view:
        return 0.0
    if is_uneven(signature):
        return max(rank_seconds(op, signature, cluster))
    flops, moved = op_flops(op, signature, cluster.mesh), op_bytes(op, signature, cluster.mesh)
    return max(
        _device_seconds(device, flops, moved, _dtype(op.args or op.outs)) for device in cluster.kinds_used
    )


def rank_seconds(op: ComputeOp, signature: Signature, cluster: Cluster) -> list[float]:
    """The roofline time of each rank, with its own part on its own device; a rank without a part takes none."""
    mesh, dtype = cluster.mesh, _dtype(op.args or op.outs)
    seconds: list[float] = []
    for rank in range(mesh.device_count):
        flops, moved = op_flops(op, signature, mesh, rank), op_bytes(op, signature, mesh, rank)
        seconds.append(_device_seconds(cluster.device(rank), flops, moved, dtype) if flops or moved else 0.0)
    return seconds


def is_uneven(signature: Signature) -> bool:
    """Whether some dim is split at boundaries of its own."""
    return any(d.offsets is not None for s in (*signature.operands, *signature.results) for d in s.dims)


def _dtype(values: Sequence[SSAValue]) -> str:
    return dtype_of(values[0]) if values else "float32"


def _device_seconds(device: Device, flops: float, moved: float, dtype: str) -> float:
    return max(flops / device.rate(dtype), moved / device.memory_bandwidth) + device.launch
