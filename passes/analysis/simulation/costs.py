"""The seconds of single ops on each class of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from xdsl.ir import Operation, SSAValue

from ....dialects.compute import ComputeOp, dtype_of
from ....dialects.spmd import AccumulateOp, CollectiveOp, PartialOp, ReshardOp, SliceOp, StartOp, WaitOp
from ....ir.cluster import Cluster
from ....ir.op_cost import KernelPart, OpWork, op_seconds
from ....ir.sharding import Sharding
from ....ir.signatures import Signature
from ...errors import fail
from ..compute import copying, has_tables, is_uneven, local_bytes, op_work, slice_work
from ..durations import CollectiveWork, Copies, communication_of
from ..fusion import ALONE, Parts

Seconds: TypeAlias = tuple[float, ...]
"""Seconds, one number for each class of ranks."""

Works: TypeAlias = tuple[OpWork, ...]
"""Work, one for each class of ranks; empty if no class has any."""


class OpCosts:
    """
    The seconds that ops keep a compute stream busy, for each class; computed once for equal uses of an op.

    Args:
        ranks: one rank of each class, numbered in the cluster's mesh.
        parts: the parts of ops in kernels of several ops.
    """

    def __init__(self, cluster: Cluster, ranks: Sequence[int], parts: Parts = ALONE) -> None:
        self.cluster, self.ranks, self.parts = cluster, tuple(ranks), parts
        self.devices = [cluster.device(rank) for rank in ranks]
        self.keyed = has_tables(self.devices)
        self.launches = tuple(device.launch for device in self.devices)
        self.none = (0.0,) * len(self.ranks)
        self._known = _known(cluster, self.ranks)
        self._communications: dict[CollectiveOp | StartOp, CollectiveWork] = {}

    def __call__(self, op: Operation) -> Seconds:
        """Return the seconds of `op`, or the seconds before an op communicates; 0 for an op without work."""
        if isinstance(op, StartOp):
            starting = self.communication(op).start_seconds(self.cluster)
            packing = self._seconds(self.works(op))
            return tuple(launch + starting + more for launch, more in zip(self.launches, packing, strict=True))
        if not isinstance(op, ComputeOp) or (signature := op.signature) is None:
            return self._seconds(self.works(op))
        key = (op.use_key(), signature, self.parts.get(op))
        if (seconds := self._known.get(key)) is None:
            seconds = self._known[key] = self._seconds(self.works(op))
        return seconds

    def communication(self, op: CollectiveOp | StartOp) -> CollectiveWork:
        """Return the work of a collective op."""
        if (work := self._communications.get(op)) is None:
            work = self._communications[op] = communication_of(op, self.cluster.mesh)
        return work

    def after(self, op: Operation) -> Seconds:
        """Return the seconds of the work that remains after `op` has communicated."""
        return self._seconds(self.works_after(op))

    def works_after(self, op: Operation) -> Works:
        """Return the work that remains after `op` has communicated."""
        match op:
            case WaitOp():
                return self._copied(op.start.args[0], self.communication(op.start).joined)
            case CollectiveOp() if is_over_space(op, self.cluster):
                return self._copied(op.operand, self.communication(op).joined)
            case _:
                return ()

    def works(self, op: Operation) -> Works:
        """Return the work of `op` before it communicates; empty if it only communicates."""
        match op:
            case ComputeOp():
                if (signature := op.signature) is None:
                    fail(op, "has no signature; run search-strategy before predicting the time")
                # With an even split, every rank counts as having the largest part.
                mesh, uneven = self.cluster.mesh, is_uneven(signature)
                ranks = (rank if uneven else None for rank in self.ranks)
                part = self.parts.get(op)
                return tuple(op_work(op, signature, mesh, rank, keyed=self.keyed, part=part) for rank in ranks)
            case SliceOp():
                return (slice_work(op, self.cluster.mesh),) * len(self.ranks)
            case StartOp():
                return self._copied(op.args[0], self.communication(op).packed)
            case PartialOp():
                return self._moved(op.result, op.sharding, 1)
            case CollectiveOp() if not is_over_space(op, self.cluster):
                parts = self.cluster.mesh.parts(axis for axes in op.axes.data for axis in axes)
                return self._moved(op.result, op.sharding, 3 * (parts - 1))
            case CollectiveOp():
                return self._copied(op.operand, self.communication(op).packed)
            case AccumulateOp():
                return self._moved(op.result, op.out_sharding.sharding, 3)
            case ReshardOp():
                fail(op, "has no collective yet; run select-collectives before predicting the time")
            case _:
                return ()

    def _moved(self, value: SSAValue, sharding: Sharding, times: int) -> Works:
        """Return the work of reading or writing the local part of a value `times` times."""
        return self._copied(value, Copies(float(times * local_bytes(value, sharding, self.cluster.mesh))))

    def _copied(self, value: SSAValue, copies: Copies) -> Works:
        """Return the work of copies of a value's dtype."""
        work = copying(dtype_of(value), copies.moved, copies.launches)
        return (work,) * len(self.ranks) if copies.moved else ()

    def _seconds(self, works: Works) -> Seconds:
        if not works:
            return self.none
        return tuple(op_seconds(device, work) for device, work in zip(self.devices, works, strict=True))


@lru_cache(maxsize=8)
def _known(cluster: Cluster, ranks: tuple[int, ...]) -> dict[tuple[object, Signature, KernelPart | None], Seconds]:
    """Return a cache from use, signature and part of an op to its seconds, since a step is simulated several times."""
    return {}


def is_over_space(op: CollectiveOp, cluster: Cluster) -> bool:
    """Return whether a collective communicates between ranks; over time, a rank has all operands itself."""
    axes = {axis for names in op.axes.data for axis in names}
    return any(axis.name in axes for axis in cluster.mesh.spatial)
