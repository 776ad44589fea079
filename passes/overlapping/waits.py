"""When reductions under way are waited for: as soon as waiting costs no time, so that what they read is freed."""

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
    In a scheduled block, wait for each reduce-scatter as soon as it is predicted to be over: that frees what it
    reads, and costs no time. No more than `in_flight` are under way at once over the same axes, whatever that costs.

    One is over when something that was started after it over the same axes is, for these run one after the other. By
    the cost model it is taken to be over when it has had three times the predicted time, after those before it.
    """
    _StreamWalk(traffic, in_flight).run()


def is_reduction(start: StartOp) -> bool:
    """Whether a collective reads whole values and gives parts, so that its wait frees memory."""
    return start.collective is CollectiveKind.REDUCE_SCATTER


def wait_of(start: StartOp) -> WaitOp:
    """The wait for what was started."""
    wait = next(iter(start.token.uses)).operation
    assert isinstance(wait, WaitOp)
    return wait


def move_before(half: Operation, op: Operation) -> None:
    """Put one half of a collective right before `op`, in the same part of the model and the same pass."""
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
    """A collective that was started: when it is over by the cost model, and when it is taken to be."""

    wait: WaitOp
    number: int
    end: float
    taken: float


@dataclass
class _AxesQueue:
    """The collectives over some axes: when the last one is over, and the reductions not waited for, oldest first."""

    free: float = 0.0
    reductions: deque[_StartedCollective] = field(default_factory=deque[_StartedCollective])

    def over(self, number: float = math.inf, now: float = math.inf) -> Iterator[WaitOp]:
        """Take the reductions from before a collective that are taken to be over by `now`."""
        while self.reductions and self.reductions[0].number < number and self.reductions[0].taken <= now:
            yield self.reductions.popleft().wait


class _StreamWalk:
    """Follows the compute stream through a block, and the channels beside it; one use."""

    def __init__(self, traffic: BucketTraffic, in_flight: int | None) -> None:
        self.in_flight = in_flight if in_flight is not None else math.inf
        self.flow, self.times, self.cluster = traffic.flow, traffic.times, traffic.times.cluster
        self.now = 0.0
        self.channels: dict[tuple[str, ...], _AxesQueue] = {}
        self.runs: dict[WaitOp, tuple[_AxesQueue, _StartedCollective]] = {}
        self.moved: set[Operation] = set()

    def run(self) -> None:
        """Go through the ops in the order in which they stood."""
        for op in list(self.flow.block.ops):
            if op not in self.moved and self.flow.view.has(op):
                self._move((wait for channel in self.channels.values() for wait in channel.over(now=self.now)), op)
                self._do(op)

    def _move(self, waits: Iterable[WaitOp], before: Operation | None) -> None:
        assert before is not None, "a block ends with what needs its values"
        for wait in waits:
            if wait is not before:
                move_before(wait, before)
                self.moved.add(wait)

    def _do(self, op: Operation) -> None:
        """Let the time of an op pass; right after it, wait for what is certainly over then."""
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

    def _start(self, op: StartOp) -> None:
        """Start a collective; before one reduction too many, wait for the oldest."""
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
        """The channel of a collective, and how long it takes."""
        found = communication_of(op, self.flow.mesh)
        seconds = found.seconds(self.cluster) if self.cluster is not None else 0.0
        return self.channels.setdefault(found.axes, _AxesQueue()), seconds
