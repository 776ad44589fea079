"""Writing of a schedule of collectives into a step function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Operation, OpResult

from ...dialects.pipe import values_read
from ...dialects.spmd import StartOp, WaitOp
from ...dialects.step import BACKWARD
from ...dialects.words import MethodAttr
from ...ir.collective_cost import Method
from ..analysis.durations import communication_of
from .buckets import Bucket, BucketTraffic
from .waits import wait_of


def write_schedule(traffic: BucketTraffic, buckets: Iterable[Bucket], updates: Sequence[Operation]) -> None:
    """
    Replace the collectives of each bucket by one `spmd.start` and one `spmd.wait`, and put all ops in order.

    The body and then `updates` keep their order. A start follows the op at its position. A wait, and the views of its
    results, precede the first op that needs them. Frees are dropped. A bucket uses the fastest method for its size.
    """
    _ScheduleWriter(traffic, buckets, updates).run()


class _ScheduleWriter:
    """A writer of ops by demand: the producers of an op's operands are written before the op; used once."""

    def __init__(self, traffic: BucketTraffic, buckets: Iterable[Bucket], updates: Sequence[Operation]) -> None:
        flow = traffic.flow
        self.flow, self.block, self.cluster = flow, flow.block, traffic.times.cluster
        self.written: set[Operation] = set()
        self.halves: set[Operation] = set()
        self.starts: dict[int, list[StartOp]] = {}
        replaced: set[Operation] = set()
        for bucket in buckets:
            self.starts.setdefault(bucket.start, []).append(self._halve(bucket))
            replaced.update(bucket.members)
        self.sequence = [*flow.body, *updates]
        self.replaced = replaced
        self.here = {*flow.ops, *self.halves}

    def _halve(self, bucket: Bucket) -> StartOp:
        """Return the start of a bucket, after replacing the results of its members by the results of its wait."""
        first = bucket.members[0]
        operands = [op.operand for op in bucket.members]
        shardings = [op.out_sharding for op in bucket.members]
        start = StartOp(first.KIND, operands, shardings, bucket.methods[0] if bucket.methods else None)
        start.token.name_hint = f"{first.result.name_hint or first.KIND}.started"
        wait = WaitOp(start)
        for op, result in zip(bucket.members, wait.outs, strict=True):
            result.name_hint = op.result.name_hint
            op.result.replace_all_uses_with(result)
        if len(bucket.methods) > 1:
            start.method = MethodAttr(min(bucket.methods, key=lambda method: self._seconds(start, method)))
        self.halves |= {start, wait}
        return start

    def _seconds(self, start: StartOp, method: Method) -> float:
        assert self.cluster is not None
        start.method = MethodAttr(method)
        return communication_of(start, self.flow.mesh).seconds(self.cluster)

    def run(self) -> None:
        """Detach all ops from the block and write them back in order, except for the replaced collectives."""
        end = self.block.last_op
        assert end is not None, "a step function returns"
        for op in list(self.block.ops):
            op.detach()
        self._write_starts(-1, self.sequence[0])
        for position, op in enumerate(self.sequence):
            if op not in self.replaced:
                self._write(op, op)
            self._write_starts(position, op)
        for op in self.flow.ops:
            if op not in self.replaced:
                self._write(op, op)
        # Collectives without users are waited for, too.
        for start in (half for _, starts in sorted(self.starts.items()) for half in starts):
            self._write(wait_of(start), end)
        self._write(end, end)
        for op in self.replaced:
            op.erase()

    def _write_starts(self, position: int, near: Operation) -> None:
        for start in self.starts.get(position, ()):
            self._write(start, near)

    def _write(self, op: Operation, near: Operation) -> None:
        """
        Write `op` after the producers of its operands; a start or wait takes the location and pass of `near`.

        Other ops keep their order and a wait comes right before its first use, so this is no topological sort of
        `graphlib`.
        """
        if op in self.written:
            return
        self.written.add(op)
        if op in self.halves:
            op.location = near.location
            if BACKWARD in near.attributes:
                op.attributes[BACKWARD] = near.attributes[BACKWARD]
        for value in values_read(op):
            if isinstance(value, OpResult) and value.op in self.here:
                self._write(value.op, op)
        self.block.add_op(op)
