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
from ..durations import communication_of
from ..fusion import ALONE, Parts

Seconds: TypeAlias = tuple[float, ...]
"""By class."""

Works: TypeAlias = tuple[OpWork, ...]
"""By class; empty for all where there is none."""


class OpCosts:
    """
    The seconds for which ops keep a compute stream busy, by class; found once for equal uses of an op.

    Args:
        ranks: one of each class, of the cluster's mesh.
        parts: of ops that are no kernels by themselves, what they do of those that they are in.
    """

    def __init__(self, cluster: Cluster, ranks: Sequence[int], parts: Parts = ALONE) -> None:
        self.cluster, self.ranks, self.parts = cluster, tuple(ranks), parts
        self.devices = [cluster.device(rank) for rank in ranks]
        self.keyed = has_tables(self.devices)
        self.launches = tuple(device.launch for device in self.devices)
        self.none = (0.0,) * len(self.ranks)
        self._known = _known(cluster, self.ranks)

    def __call__(self, op: Operation) -> Seconds:
        """The time of `op`, of one that communicates before it does; nothing for one that does nothing."""
        if isinstance(op, StartOp):
            starting = communication_of(op, self.cluster.mesh).start_seconds(self.cluster)
            packing = self._seconds(self.works(op))
            return tuple(launch + starting + more for launch, more in zip(self.launches, packing, strict=True))
        if not isinstance(op, ComputeOp) or (signature := op.signature) is None:
            return self._seconds(self.works(op))
        key = (op.use_key(), signature, self.parts.get(op))
        if (found := self._known.get(key)) is None:
            found = self._known[key] = self._seconds(self.works(op))
        return found

    def after(self, op: Operation) -> Seconds:
        """The time of what is left to do when `op` has communicated."""
        return self._seconds(self.works_after(op))

    def works_after(self, op: Operation) -> Works:
        """What is left to do when `op` has communicated."""
        match op:
            case WaitOp():
                return self._copied(op.start.args[0], communication_of(op.start, self.cluster.mesh).joined)
            case CollectiveOp() if is_over_space(op, self.cluster):
                return self._copied(op.operand, communication_of(op, self.cluster.mesh).joined)
            case _:
                return ()

    def works(self, op: Operation) -> Works:
        """What `op` does, before it communicates; nothing where it only does that."""
        match op:
            case ComputeOp():
                return self._computed(op)
            case SliceOp():
                return (slice_work(op, self.cluster.mesh),) * len(self.ranks)
            case StartOp():
                return self._copied(op.args[0], communication_of(op, self.cluster.mesh).packed)
            case PartialOp():
                return self._moved(op.result, op.sharding, 1)
            case CollectiveOp() if not is_over_space(op, self.cluster):
                parts = self.cluster.mesh.parts(axis for axes in op.axes.data for axis in axes)
                return self._moved(op.result, op.sharding, 3 * (parts - 1))
            case CollectiveOp():
                return self._copied(op.operand, communication_of(op, self.cluster.mesh).packed)
            case AccumulateOp():
                return self._moved(op.result, op.out_sharding.sharding, 3)
            case ReshardOp():
                fail(op, "has no collective yet; run select-collectives before predicting the time")
            case _:
                return ()

    def _computed(self, op: ComputeOp) -> Works:
        """Of an even split every rank is taken to have the largest part."""
        if (signature := op.signature) is None:
            fail(op, "has no signature; run search-strategy before predicting the time")
        mesh, uneven = self.cluster.mesh, is_uneven(signature)
        ranks = (rank if uneven else None for rank in self.ranks)
        part = self.parts.get(op)
        return tuple(op_work(op, signature, mesh, rank, keyed=self.keyed, part=part) for rank in ranks)

    def _moved(self, value: SSAValue, sharding: Sharding, times: int) -> Works:
        """Reading or writing the local part of a value as often as that."""
        return self._copied(value, float(times * local_bytes(value, sharding, self.cluster.mesh)))

    def _copied(self, value: SSAValue, moved: float) -> Works:
        """Reading or writing so many bytes of the dtype of a value."""
        return (copying(dtype_of(value), moved),) * len(self.ranks) if moved else ()

    def _seconds(self, works: Works) -> Seconds:
        if not works:
            return self.none
        return tuple(op_seconds(device, work) for device, work in zip(self.devices, works, strict=True))


@lru_cache(maxsize=8)
def _known(cluster: Cluster, ranks: tuple[int, ...]) -> dict[tuple[object, Signature, KernelPart | None], Seconds]:
    """By use, signature and part of an op, its seconds on some ranks: a step is simulated more than once."""
    return {}


def is_over_space(op: CollectiveOp, cluster: Cluster) -> bool:
    """Whether a collective is between ranks: over time a rank has all that it takes."""
    axes = {axis for names in op.axes.data for axis in names}
    return any(axis.name in axes for axis in cluster.mesh.spatial)
