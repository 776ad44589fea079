"""How large buckets should be and how early they must start: what `overlap` asks of the cost model."""

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
"""How many times its predicted time a collective is given."""


class ComputeTimes:
    """
    The cost model's view of a sequence of ops.

    Without a cluster nothing is known of time: buckets have 25 MiB, and may start at any time.

    Args:
        ops: what the compute stream does, in order; ops without a signature on its mesh count as nothing.
        cluster: on what.
        bucket_bytes: the size of buckets, where it is given.
        parts: of ops that are no kernels by themselves, what they do of those that they are in.
    """

    def __init__(
        self, ops: Sequence[Operation], cluster: Cluster | None, bucket_bytes: float | None, parts: Parts = ALONE
    ) -> None:
        self.cluster, self._bucket_bytes = cluster, bucket_bytes
        seconds = ComputeSeconds(cluster, parts) if cluster is not None else None
        self._seconds = {op: _seconds(op, seconds) for op in ops}
        self._begins = list(accumulate(self._seconds.values(), initial=0.0))

    def seconds(self, op: Operation) -> float:
        """How long one of the ops computes; a fragment, all of its parts. Others take no time."""
        return self._seconds.get(op, 0.0)

    def bucket_bytes(self, kind: CollectiveKind, axes: tuple[str, ...]) -> float:
        """The bytes of a bucket; see `ir.collective_cost.bucket_bytes`."""
        if self._bucket_bytes is not None:
            return self._bucket_bytes
        return _USUAL_BYTES if self.cluster is None else bucket_bytes(self.cluster, kind, axes)

    def latest_start(
        self, kind: CollectiveKind, axes: tuple[str, ...], whole_bytes: float, use: int, steps: int = 1
    ) -> int:
        """
        The position of the last op after which a collective may start that is to be over at the op `use`.

        It is given 3 times the predicted time, for each of `steps`: predictions err, and others may be on their
        way.
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
    given = op.attributes.get(SIGNATURE)
    if seconds is None or not isinstance(op, ComputeOp) or not isinstance(given, SignatureAttr):
        return 0.0
    return seconds(op, given.signature) if given.data.mesh == seconds.cluster.mesh.name else 0.0
