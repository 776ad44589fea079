"""How long the ops and collectives of a step take, each by itself, and which module of the model they are from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...dialects.compute import ComputeOp, shape_of, value_bytes
from ...dialects.spmd import CollectiveOp, StartOp
from ...dialects.step import sharding_of
from ...ir.cluster import Cluster
from ...ir.collective_cost import Method, handled_share, has_methods
from ...ir.collectives import ALONE_FROM_BYTES, CollectiveKind, Step, find_step
from ...ir.mesh import Mesh
from ...ir.op_cost import KernelPart
from ...ir.signatures import Signature
from ..errors import fail
from .collective_memory import is_block
from .compute import local_bytes, op_seconds
from .fusion import ALONE, Parts


@dataclass(frozen=True)
class CollectiveWork:
    """
    A collective.

    whole_bytes  what a rank handles of the values, gathered or not yet scattered, with the padding of its `method`
    packed       the bytes that a rank reads and writes before it sends: small values are put in one message
    joined       those that it reads and writes when all is there: parts along an inner dim are put together
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    whole_bytes: float
    method: Method = "flat"
    packed: float = 0.0
    joined: float = 0.0

    def seconds(self, cluster: Cluster) -> float:
        """How long it takes."""
        return cluster.collective_seconds(self.kind, self.axes, self.whole_bytes, self.method)

    def start_seconds(self, cluster: Cluster) -> float:
        """How much of that its start takes of the compute stream, where it is in two halves."""
        return cluster.start_seconds(self.kind, self.axes, self.whole_bytes)


def communication_of(op: CollectiveOp | StartOp, mesh: Mesh) -> CollectiveWork:
    """What a collective op communicates."""
    if isinstance(op, CollectiveOp):
        steps = [op.step(sharding_of(op.operand), mesh)]
    else:
        steps = [_started(op, index, mesh) for index in range(len(op.args))]
    method = "flat" if op.method is None else op.method.data
    pairs = list(zip(op.operands, steps, strict=True))
    sizes = (_handled_bytes(value, step, mesh, method) for value, step in pairs)
    moved = (_packed_bytes(pairs, mesh), _joined_bytes(pairs, mesh))
    if method == "hierarchical" and steps[0].kind is not CollectiveKind.ALL_REDUCE:
        # It copies what it sends and gets in any case, and these copies are part of its seconds.
        moved = (0.0, 0.0)
    return CollectiveWork(steps[0].kind, steps[0].axes, float(sum(sizes)), method, *moved)


def _packed_bytes(pairs: Sequence[tuple[SSAValue, Step]], mesh: Mesh) -> float:
    held = [(value, step, local_bytes(value, step.source, mesh)) for value, step in pairs]
    match pairs[0][1].kind:
        case CollectiveKind.ALL_REDUCE if len(pairs) > 1:
            return 2.0 * sum(size for _, _, size in held if size < ALONE_FROM_BYTES)
        case CollectiveKind.REDUCE_SCATTER:
            return 2.0 * sum(n for value, step, n in held if not is_block(shape_of(value), step.source, step.dim, mesh))
        case _:
            return 0.0


def _joined_bytes(pairs: Sequence[tuple[SSAValue, Step]], mesh: Mesh) -> float:
    if pairs[0][1].kind is not CollectiveKind.ALL_GATHER:
        return 0.0
    inner = ((v, step) for v, step in pairs if not is_block(shape_of(v), step.target, step.dim, mesh))
    return 2.0 * sum(local_bytes(value, step.target, mesh) for value, step in inner)


def _handled_bytes(value: SSAValue, step: Step, mesh: Mesh, method: Method) -> float:
    if has_methods(step):
        return handled_share(step, mesh, method) * value_bytes(value)
    match step.kind:
        case CollectiveKind.ALL_GATHER:
            return local_bytes(value, step.target, mesh)
        case CollectiveKind.ALL_TO_ALL:
            return max(local_bytes(value, step.source, mesh), local_bytes(value, step.target, mesh))
        case _:
            return local_bytes(value, step.source, mesh)


def _started(op: StartOp, index: int, mesh: Mesh) -> Step:
    source, target = sharding_of(op.args[index]), op.out_shardings.data[index].sharding
    step = find_step(op.collective, source, target, mesh)
    if step is None:
        fail(op, f"no {op.collective} converts {source} to {target}")
    return step


class ComputeSeconds:
    """
    The times of ops on a cluster, each found once for equal uses of an op with equal signatures.

    Args:
        parts: of ops that are no kernels by themselves, what they do of those that they are in.
    """

    def __init__(self, cluster: Cluster, parts: Parts = ALONE) -> None:
        self.cluster, self._parts = cluster, parts
        self._known: dict[tuple[object, Signature, KernelPart | None], float] = {}

    def __call__(self, op: ComputeOp, signature: Signature) -> float:
        """The time of `op`."""
        key = (op.use_key(), signature, self._parts.get(op))
        if key not in self._known:
            self._known[key] = op_seconds(op, signature, self.cluster, self._parts.get(op))
        return self._known[key]
