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
from ..time.loop import communicates
from .buckets import Traffic
from .pace import MARGIN

def wait_early(traffic: Traffic) -> None:
    """
    In a scheduled block, wait for each reduce-scatter as soon as it is over, as far as can be told; it then frees more
    than it makes.

    It is over when something that was started after it over the same axes is: these run one after the other. It is
    taken to be over when three times the predicted time has passed since its start, in which it may have queued.
    """
    _Walk(traffic).run()


def is_reduction(start: StartOp) -> bool:
    """Whether a collective reads whole values and gives parts, so that its wait frees memory."""
    return start.collective is CollectiveKind.REDUCE_SCATTER


def wait_of(start: StartOp) -> WaitOp:
    """The wait for what was started."""
    wait = next(iter(start.token.uses)).operation
    assert isinstance(wait, WaitOp)
    return wait


def move_before(wait: WaitOp, op: Operation) -> None:
    """Wait right before `op`, in the same part of the model and the same pass."""
    block = op.parent_block()
    assert block is not None
    wait.detach()
    wait.location = op.location
    wait.attributes.pop(BACKWARD, None)
    if BACKWARD in op.attributes:
        wait.attributes[BACKWARD] = op.attributes[BACKWARD]
    block.insert_op_before(wait, op)


@dataclass(frozen=True)
class _Run:
    """A collective that was started: when it is over by the cost model, and when it is taken to be."""

    wait: WaitOp
    number: int
    end: float
    taken: float


@dataclass
class _Channel:
    """The collectives over some axes: when the last one is over, and the reductions not waited for, oldest first."""

    free: float = 0.0
    reductions: deque[_Run] = field(default_factory=deque[_Run])

    def over(self, number: float = math.inf, now: float = math.inf) -> Iterator[WaitOp]:
        """Take the reductions from before a collective that are taken to be over by `now`."""
        while self.reductions and self.reductions[0].number < number and self.reductions[0].taken <= now:
            yield self.reductions.popleft().wait


class _Walk:
    """Follows the compute stream through a block, and the channels beside it; one use."""

    def __init__(self, traffic: Traffic) -> None:
        self.flow, self.pace, self.cluster = traffic.flow, traffic.pace, traffic.pace.cluster
        self.now = 0.0
        self.channels: dict[tuple[str, ...], _Channel] = {}
        self.runs: dict[WaitOp, tuple[_Channel, _Run]] = {}
        self.moved: set[Operation] = set()

    def run(self) -> None:
        """Go through the ops in the order in which they stood."""
        for op in list(self.flow.block.ops):
            if op in self.moved or not self.flow.view.has(op):
                continue
            self._move((wait for channel in self.channels.values() for wait in channel.over(now=self.now)), op)
            after = op.next_op
            over = list(self._do(op))
            if after is not None:
                self._move(over, after)

    def _move(self, waits: Iterable[WaitOp], before: Operation) -> None:
        for wait in waits:
            if wait is not before:
                move_before(wait, before)
                self.moved.add(wait)

    def _do(self, op: Operation) -> Iterator[WaitOp]:
        """Let the time of an op pass; the waits for what is then certainly over."""
        match op:
            case StartOp():
                self._start(op)
            case WaitOp() if op in self.runs:
                channel, run = self.runs[op]
                self.now = max(self.now, run.end)
                yield from (wait for wait in channel.over(run.number + 1) if wait is not op)
            case CollectiveOp() if communicates(op, self.flow.mesh):
                channel = self._channel(op)
                self.now = channel.free = max(self.now, channel.free) + self._seconds(op)
                yield from channel.over()
            case _:
                self.now += self.pace.seconds(op)

    def _start(self, op: StartOp) -> None:
        channel, wait = self._channel(op), wait_of(op)
        channel.free = max(self.now, channel.free) + self._seconds(op)
        taken = self.now + MARGIN * (channel.free - self.now) if self.cluster is not None else math.inf
        run = _Run(wait, len(self.runs), channel.free, taken)
        self.runs[wait] = channel, run
        if is_reduction(op):
            channel.reductions.append(run)

    def _channel(self, op: CollectiveOp | StartOp) -> _Channel:
        return self.channels.setdefault(communication_of(op, self.flow.mesh).axes, _Channel())

    def _seconds(self, op: CollectiveOp | StartOp) -> float:
        return communication_of(op, self.flow.mesh).seconds(self.cluster) if self.cluster is not None else 0.0
