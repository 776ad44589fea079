"""
When each op of a scheduled step runs, and so how long the step takes.

A device has a compute stream, and a communication stream for each group of axes. Ops take their streams in program
order: an op that computes takes its roofline time on the compute stream; a collective holds up both; a fragment takes
its time once for every part of its axis; `spmd.start` hands its collective to the communication stream and goes on,
and `spmd.wait` holds up the compute stream until that collective is over. Every rank runs the same program, so one
timeline, that of the slowest device with the largest share, stands for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.pipe import FragmentOp
from ...dialects.spmd import AccumulateOp, CollectiveOp, PartialOp, ReshardOp, SliceOp, StartOp, WaitOp
from ...dialects.staged import Stages
from ...ir.cluster import Cluster, sent_bytes
from ...ir.collectives import CollectiveKind
from ...ir.sharding import Sharding
from ..errors import fail
from .compute import local_bytes
from .durations import ComputeSeconds, communication_of, layer_of

COMPUTE = "compute"
"""The name of the compute stream; a communication stream is named after its axes."""


@dataclass(frozen=True)
class Event:
    """One op or collective on one stream, in seconds from the start of the step; `layer` is its module."""

    name: str
    layer: str
    start: float
    end: float
    stream: str


@dataclass(frozen=True)
class Timeline:
    """
    The predicted course of one step, in seconds and bytes.

    seconds                from the first op to the last
    compute_seconds        how long the compute stream works
    communication_seconds  how long collectives run, summed
    exposed_seconds        how long the compute stream waits for collectives
    collective_bytes       by kind of collective, what each rank sends
    """

    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    collective_bytes: Mapping[CollectiveKind, float]
    events: tuple[Event, ...]


def predict(func: FuncOp, cluster: Cluster, stage: int | None = None) -> Timeline:
    """
    The timeline of a step function on `cluster`; of a pipeline, of `stage` alone, whose cluster it is.

    OpFailure where an op has no signature, or a resharding no collective yet.
    """
    clock, stages = Clock(cluster), Stages(func)
    for op in func.body.block.ops:
        if stage is None or stages.of_op(op) == stage:
            clock.run(op)
    return clock.timeline()


class Clock:
    """Runs ops in program order; one use."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free: dict[str, float] = {COMPUTE: 0.0}
        self.done: dict[SSAValue, float] = {}
        self.events: list[Event] = []
        self.sent: defaultdict[CollectiveKind, float] = defaultdict(float)
        self.compute_seconds = ComputeSeconds(cluster)
        self.launch = max(device.launch for device in cluster.kinds_used)
        self.bandwidth = min(device.memory_bandwidth for device in cluster.kinds_used)

    def run(self, op: Operation) -> None:
        """Take the streams that `op` needs for as long as it needs them."""
        match op:
            case ComputeOp():
                self._take(op, (COMPUTE,), self._compute_seconds(op))
            case SliceOp():
                pass
            case PartialOp():
                self._move(op, op.result, op.sharding, 1)
            case FragmentOp():
                for _ in range(self.cluster.mesh.axis(op.axis.data).size):
                    for inner in op.body.block.ops:
                        self.run(inner)
            case CollectiveOp() if not self._communicates(op):
                parts = self.cluster.mesh.parts(axis for axes in op.axes.data for axis in axes)
                self._move(op, op.result, op.sharding, 3 * (parts - 1))
            case AccumulateOp():
                self._move(op, op.result, op.out_sharding.sharding, 3)
            case CollectiveOp():
                self._communicate(op, blocking=True)
            case StartOp():
                self._take(op, (COMPUTE,), self.launch)
                self.done[op.token] = self._communicate(op, blocking=False)
            case WaitOp():
                self.wait_until(self.done[op.token])
            case ReshardOp():
                fail(op, "has no collective yet; run select-collectives before predicting the time")
            case _:
                pass

    @property
    def now(self) -> float:
        """When the compute stream is free."""
        return self.free[COMPUTE]

    def wait_until(self, time: float) -> None:
        """Hold up the compute stream."""
        self.free[COMPUTE] = max(self.free[COMPUTE], time)

    def _communicates(self, op: CollectiveOp) -> bool:
        """Whether a collective is over space: over time a rank has all that it takes."""
        axes = {axis for axes in op.axes.data for axis in axes}
        return any(axis.name in axes for axis in self.cluster.mesh.spatial)

    def _move(self, op: Operation, value: SSAValue, sharding: Sharding, times: int) -> None:
        """Read or write the local part of a value as often as that."""
        moved = times * local_bytes(value, sharding, self.cluster.mesh)
        self._take(op, (COMPUTE,), self.launch + moved / self.bandwidth)

    def _compute_seconds(self, op: ComputeOp) -> float:
        if (signature := op.signature) is None:
            fail(op, "has no signature; run search-strategy before predicting the time")
        return self.compute_seconds(op, signature)

    def _communicate(self, op: CollectiveOp | StartOp, *, blocking: bool) -> float:
        """When the collective is over."""
        what = communication_of(op, self.cluster.mesh)
        stream = " ".join(what.axes)
        self.sent[what.kind] += sent_bytes(what.kind, self.cluster.mesh.parts(what.axes), what.whole_bytes)
        self.free[stream] = max(self.free.get(stream, 0.0), self.free[COMPUTE])
        self._take(op, (stream, COMPUTE) if blocking else (stream,), what.seconds(self.cluster))
        return self.free[stream]

    def _take(self, op: Operation, streams: tuple[str, ...], seconds: float) -> None:
        """Occupy `streams` from when the first of them is free; the event is on that one."""
        if not seconds:
            return
        start = self.free[streams[0]]
        self.free.update(dict.fromkeys(streams, start + seconds))
        self.events.append(Event(_name(op), layer_of(op), start, start + seconds, streams[0]))

    def timeline(self) -> Timeline:
        """What was recorded."""
        seconds = max(self.free.values())
        busy = sum(event.end - event.start for event in self.events if event.stream == COMPUTE)
        talking = sum(event.end - event.start for event in self.events if event.stream != COMPUTE)
        return Timeline(seconds, busy, talking, seconds - busy, dict(self.sent), tuple(self.events))


def _name(op: Operation) -> str:
    if isinstance(op, StartOp):
        return f"{op.collective} of {len(op.args)}"
    hint = op.results[0].name_hint if op.results else None
    return f"{op.name} %{hint}" if hint else op.name
