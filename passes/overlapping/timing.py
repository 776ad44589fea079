"""The size of buckets and the latest start of collectives, from the cost model: used by `overlap`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from xdsl.ir import Operation

from ...dialects.compute import SIGNATURE, ComputeOp
from ...dialects.pipe import FragmentOp
from ...dialects.sharding_attrs import SignatureAttr
from ...ir.cluster import Cluster
from ...ir.collective_cost import bucket_bytes
from ...ir.collectives import CollectiveKind
from ..analysis.durations import ComputeSeconds
from ..analysis.fusion import ALONE, Parts

_USUAL_BYTES = 25 * 2**20
MARGIN = 3
"""Factor between the predicted time of a collective and the time that it is given."""


class ComputeTimes:
    """
    The seconds of a sequence of ops by the cost model.

    Without a cluster no times are known: buckets have 25 MiB and may start at any time.

    Args:
        ops: the ops of the compute stream, in order; ops with no signature on the cluster's mesh take 0 seconds.
        cluster: the cluster that runs the ops.
        bucket_bytes: size of buckets, by default the cost model's size.
        parts: for ops that are only part of a kernel, their share of that kernel.
    """

    def __init__(
        self, ops: Sequence[Operation], cluster: Cluster | None, bucket_bytes: float | None, parts: Parts = ALONE
    ) -> None:
        self.cluster, self._bucket_bytes = cluster, bucket_bytes
        seconds = ComputeSeconds(cluster, parts) if cluster is not None else None
        self._seconds = {op: _seconds(op, seconds) for op in ops}
        self._begins = list(accumulate(self._seconds.values(), initial=0.0))

    def seconds(self, op: Operation) -> float:
        """Return the compute seconds of one of the ops, with all parts of a fragment; other ops take no time."""
        return self._seconds.get(op, 0.0)

    def bucket_bytes(self, kind: CollectiveKind, axes: tuple[str, ...]) -> float:
        """Return the bytes of a bucket; see `ir.collective_cost.bucket_bytes`."""
        if self._bucket_bytes is not None:
            return self._bucket_bytes
        return _USUAL_BYTES if self.cluster is None else bucket_bytes(self.cluster, kind, axes)

    def latest_start(
        self, kind: CollectiveKind, axes: tuple[str, ...], whole_bytes: float, use: int, steps: int = 1
    ) -> int:
        """
        Return the position of the last op that a collective may start after to be complete at the op `use`.

        It is given 3 times the predicted time for each of `steps`, because predictions err and other collectives may be
        in flight.
        """
        if self.cluster is None:
            return -1
        needed = steps * MARGIN * self.cluster.collective_seconds(kind, axes, whole_bytes)
        began = self._begins[min(use, len(self._begins) - 1)]
        return min(bisect_right(self._begins, began - needed) - 2, use - 1)


def _seconds(op: Operation, seconds: ComputeSeconds | None) -> float:
    if seconds is not None and isinstance(op, FragmentOp):
        parts = seconds.cluster.mesh.axis(op.axis.data).size
        return parts * sum(_seconds(inner, seconds) for inner in op.body.block.ops)
    attribute = op.attributes.get(SIGNATURE)
    if seconds is None or not isinstance(op, ComputeOp) or not isinstance(attribute, SignatureAttr):
        return 0.0
    return seconds(op, attribute.signature) if attribute.data.mesh == seconds.cluster.mesh.name else 0.0
