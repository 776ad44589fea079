"""The seconds of single ops and collectives of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.ir import SSAValue

from ...dialects.compute import ComputeOp, shape_of, value_bytes
from ...dialects.spmd import CollectiveOp, StartOp
from ...dialects.step import sharding_of
from ...ir.cluster import Cluster
from ...ir.collective_cost import Method, handled_share, has_methods, methods_in_one_phase
from ...ir.collectives import ALONE_FROM_BYTES, CollectiveKind, Step, find_step
from ...ir.mesh import Mesh
from ...ir.op_cost import KernelPart
from ...ir.signatures import Signature
from ..errors import fail
from .collective_memory import is_block
from .compute import local_bytes, op_seconds
from .fusion import ALONE, Parts


class Copies(NamedTuple):
    """
    Copies on a device.

    moved     bytes that are read and written
    launches  number of kernels
    """

    moved: float = 0.0
    launches: int = 1


NO_COPIES = Copies()


@dataclass(frozen=True)
class CollectiveWork:
    """
    The kind and the bytes of a collective.

    whole_bytes  bytes of the values that a rank handles, gathered or not yet scattered, with the padding of `method`
    packed       copies before a rank sends, to put values into one message
    joined       copies after a rank has received, to join parts
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    whole_bytes: float
    method: Method = "flat"
    packed: Copies = NO_COPIES
    joined: Copies = NO_COPIES

    def seconds(self, cluster: Cluster) -> float:
        """Return the seconds of the collective."""
        return cluster.collective_seconds(self.kind, self.axes, self.whole_bytes, self.method)

    def start_seconds(self, cluster: Cluster) -> float:
        """Return the seconds that starting the collective asynchronously takes from the compute stream."""
        return cluster.start_seconds(self.kind, self.axes, self.whole_bytes)


def communication_of(op: CollectiveOp | StartOp, mesh: Mesh) -> CollectiveWork:
    """Return the work of a collective op."""
    if isinstance(op, CollectiveOp):
        steps = [op.step(sharding_of(op.operand), mesh)]
    else:
        steps = [_started(op, index, mesh) for index in range(len(op.args))]
    method = "flat" if op.method is None else op.method.data
    pairs = list(zip(op.operands, steps, strict=True))
    sizes = (_handled_bytes(value, step, mesh, method) for value, step in pairs)
    moved = (_packed(pairs, mesh, method), _joined(pairs, mesh, method))
    if method == "hierarchical" and steps[0].kind is not CollectiveKind.ALL_REDUCE:
        # Hierarchical collectives always copy the data they send and receive, and their seconds include these copies.
        moved = (NO_COPIES, NO_COPIES)
    return CollectiveWork(steps[0].kind, steps[0].axes, float(sum(sizes)), method, *moved)


def _packed(pairs: Sequence[tuple[SSAValue, Step]], mesh: Mesh, method: Method) -> Copies:
    """Return the copies of whole values before `runtime/collectives` sends; padding copies all by one kernel."""
    held = [(value, step, local_bytes(value, step.source, mesh)) for value, step in pairs]
    sizes = [size for _, _, size in held]
    match pairs[0][1].kind, method:
        case CollectiveKind.ALL_REDUCE, _ if len(pairs) > 1:
            return Copies(2.0 * sum(size for size in sizes if size < ALONE_FROM_BYTES))
        case CollectiveKind.REDUCE_SCATTER, "padded" if any(
            _in_padded_rows(value, step, mesh) for value, step in pairs
        ):
            return Copies(2.0 * sum(sizes))
        case CollectiveKind.REDUCE_SCATTER, "grouped_broadcast":
            # Each rank's parts of the small values are a message, and its part of each other value is one.
            parts = mesh.parts(pairs[0][1].axes)
            alone = sum(size >= parts * ALONE_FROM_BYTES for size in sizes)
            return Copies(2.0 * sum(sizes), parts * (alone + (alone < len(sizes))))
        case CollectiveKind.REDUCE_SCATTER, _:
            inner = [n for value, step, n in held if not is_block(shape_of(value), step.source, step.dim, mesh)]
            return Copies(2.0 * sum(inner), max(len(inner), 1))
        case _:
            return NO_COPIES


def _joined(pairs: Sequence[tuple[SSAValue, Step]], mesh: Mesh, method: Method) -> Copies:
    """Return the copies of `runtime/collectives` after it has received; blocks in padded rows need one kernel."""
    if pairs[0][1].kind is not CollectiveKind.ALL_GATHER:
        return NO_COPIES
    inner, unpacked = list[int](), list[int]()
    for value, step in pairs:
        size = local_bytes(value, step.target, mesh)
        if not is_block(shape_of(value), step.target, step.dim, mesh):
            inner.append(size)
        elif method == "padded" and _in_padded_rows(value, step, mesh):
            unpacked.append(size)
    return Copies(2.0 * sum(inner + unpacked), max(len(inner) + bool(unpacked), 1))


def _in_padded_rows(value: SSAValue, step: Step, mesh: Mesh) -> bool:
    """Whether the padded method copies a value into rows, since its parts differ in size."""
    return "padded" in methods_in_one_phase(step, shape_of(value), mesh)


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
    The seconds of ops on a cluster, computed once for equal uses of an op with equal signatures.

    Args:
        parts: the parts of ops in kernels of several ops.
    """

    def __init__(self, cluster: Cluster, parts: Parts = ALONE) -> None:
        self.cluster, self._parts = cluster, parts
        self._known: dict[tuple[object, Signature, KernelPart | None], float] = {}

    def __call__(self, op: ComputeOp, signature: Signature) -> float:
        """Return the seconds of `op` with a signature."""
        key = (op.use_key(), signature, self._parts.get(op))
        if key not in self._known:
            self._known[key] = op_seconds(op, signature, self.cluster, self._parts.get(op))
        return self._known[key]
