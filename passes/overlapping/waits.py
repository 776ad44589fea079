"""Where reductions in flight are waited for: as soon as waiting costs no time, because a wait frees the operands."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.ir import Operation

from ...dialects.spmd import CollectiveOp, StartOp, WaitOp
from ...dialects.step import BACKWARD
from ...ir.collectives import CollectiveKind
from ..analysis.durations import communication_of
from ..step.loop import communicates
from .buckets import BucketTraffic
from .timing import MARGIN


def wait_early(traffic: BucketTraffic, in_flight: int | None = None) -> None:
    """
    Wait for each reduce-scatter of a scheduled block as soon as it is predicted to be complete, to free its operands.

    At most `in_flight` of them are in flight at once over the same axes, whatever that costs. A collective is complete
    when a later one over the same axes is, because these run one after the other. The cost model counts it as complete
    when it has had three times the predicted time after the collectives before it.
    """
    _StreamWalk(traffic, in_flight).run()


def is_reduction(start: StartOp) -> bool:
    """Return whether a collective reads whole values and gives shards of them, so that its wait frees memory."""
    return start.collective is CollectiveKind.REDUCE_SCATTER


def wait_of(start: StartOp) -> WaitOp:
    """Return the wait that belongs to a start."""
    wait = next(iter(start.token.uses)).operation
    assert isinstance(wait, WaitOp)
    return wait


def move_before(half: Operation, op: Operation) -> None:
    """Move a start or wait right before `op`, with the location and pass of `op`."""
    block = op.parent_block()
    assert block is not None
    half.detach()
    half.location = op.location
    half.attributes.pop(BACKWARD, None)
    if BACKWARD in op.attributes:
        half.attributes[BACKWARD] = op.attributes[BACKWARD]
    block.insert_op_before(half, op)


@dataclass(frozen=True)
class _StartedCollective:
    """A collective that was started, with its end by the cost model and the time when it counts as complete."""

    wait: WaitOp
    number: int
    end: float
    taken: float


@dataclass
class _AxesQueue:
    """The collectives over some axes: the end of the last one, and the reductions not waited for, oldest first."""

    free: float = 0.0
    reductions: deque[_StartedCollective] = field(default_factory=deque[_StartedCollective])

    def over(self, number: float = math.inf, now: float = math.inf) -> Iterator[WaitOp]:
        """Remove and yield the reductions older than `number` that count as complete at `now`."""
        while self.reductions and self.reductions[0].number < number and self.reductions[0].taken <= now:
            yield self.reductions.popleft().wait


class _StreamWalk:
    """A walk along the compute stream of a block and the channels of its collectives; used once."""

    def __init__(self, traffic: BucketTraffic, in_flight: int | None) -> None:
        self.in_flight = in_flight if in_flight is not None else math.inf
        self.flow, self.times, self.cluster = traffic.flow, traffic.times, traffic.times.cluster
        self.now = 0.0
        self.channels: dict[tuple[str, ...], _AxesQueue] = {}
        self.runs: dict[WaitOp, tuple[_AxesQueue, _StartedCollective]] = {}
        self.moved: set[Operation] = set()

    def run(self) -> None:
        for op in list(self.flow.block.ops):
            if op not in self.moved and self.flow.view.has(op):
                self._move((wait for channel in self.channels.values() for wait in channel.over(now=self.now)), op)
                # Reductions that are certainly complete by then are waited for right after the op.
                match op:
                    case StartOp():
                        self._start(op)
                    case WaitOp() if op in self.runs:
                        channel, run = self.runs[op]
                        self.now = max(self.now, run.end)
                        self._move((wait for wait in channel.over(run.number + 1) if wait is not op), op.next_op)
                    case CollectiveOp() if communicates(op, self.flow.mesh):
                        channel, seconds = self._sent(op)
                        self.now = channel.free = max(self.now, channel.free) + seconds
                        self._move(channel.over(), op.next_op)
                    case _:
                        self.now += self.times.seconds(op)

    def _move(self, waits: Iterable[WaitOp], before: Operation | None) -> None:
        assert before is not None, "a block ends with what needs its values"
        for wait in waits:
            if wait is not before:
                move_before(wait, before)
                self.moved.add(wait)

    def _start(self, op: StartOp) -> None:
        """Start a collective, after waiting for the oldest reductions if too many are in flight."""
        channel, seconds = self._sent(op)
        while is_reduction(op) and len(channel.reductions) >= self.in_flight:
            oldest = channel.reductions.popleft()
            self.now = max(self.now, oldest.end)
            self._move([oldest.wait], op)
        channel.free = max(self.now, channel.free) + seconds
        taken = channel.free + (MARGIN - 1) * seconds if self.cluster is not None else math.inf
        run = _StartedCollective(wait_of(op), len(self.runs), channel.free, taken)
        self.runs[run.wait] = channel, run
        if is_reduction(op):
            channel.reductions.append(run)

    def _sent(self, op: CollectiveOp | StartOp) -> tuple[_AxesQueue, float]:
        """Return the channel of a collective and the collective's seconds."""
        work = communication_of(op, self.flow.mesh)
        seconds = work.seconds(self.cluster) if self.cluster is not None else 0.0
        return self.channels.setdefault(work.axes, _AxesQueue()), seconds
