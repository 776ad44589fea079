"""
An order of the copies of a loop by list scheduling on the streams of the simulator.

There is one compute stream, and a channel for each group of axes, which carries one communication after the other. A
communication starts as soon as its operand is there. Whenever the compute stream is free it takes, of the ops whose
operands are there, the one of highest priority; if there are none, it waits. With the seconds of ops and
communications by the cost model, and the sum over the longest way,

    remaining(op)  = seconds(op) + max of remaining(user)     over all that need its results       `_CopyGraph`
    remaining(k)   = max of remaining(op)                     over the ops of phase k
    priority(op)   = remaining(k + ahead * copy + later)      phase k, `later` where it is filler  `_CopyGraph.key`

then the order of copies, then remaining(op). So a copy that has begun a phase ends it before another begins one, as a
communication follows that the others can hide. Filler is what no later communication of the loop needs: gradients of
weights, above all. It is put off by `later` phases, and so done while the others wait. How far a copy may be ahead of
the next one (`ahead`) and for how long filler may be put off bound what is held.

Source: HiDup 3 (two copies without dependences between them); list scheduling after Graham 1969.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from xdsl.ir import Operation, OpResult

from ...dialects.spmd import CollectiveOp
from ...ir.cluster import Cluster
from ..analysis.durations import communication_of
from ..analysis.simulation.costs import OpCosts
from ..step.loop import communicates
from .phases import Turn, UnrolledLoop

Copy: TypeAlias = tuple[int, Operation]
"""An op of one of the copies; what runs once is of the first."""


@dataclass(frozen=True)
class OrderFreedom:
    """
    What a list order may do.

    Args:
        ahead: by how many phases a copy may be ahead of the next one.
        later: by how many phases filler is put off.
    """

    ahead: int = 0
    later: int = 0


FREEDOMS = tuple(OrderFreedom(ahead, later) for ahead in (0, 1) for later in (0, 1, 4, 16))
"""What is tried, that which holds least first."""


@dataclass(frozen=True)
class ListOrder:
    """An order of the copies of a loop, and when all is done by it."""

    freedom: OrderFreedom
    turns: tuple[Turn, ...]
    seconds: float


def list_orders(loop: UnrolledLoop, cluster: Cluster) -> list[ListOrder]:
    """
    The list orders of a loop that differ, one for each freedom, the fastest first, of those within a thousandth that
    which holds least.
    """
    graph = _CopyGraph(loop, cluster)
    found: dict[tuple[Turn, ...], ListOrder] = {}
    for freedom in FREEDOMS:
        turns, seconds = _ListRun(graph, freedom).run()
        found.setdefault(turns, ListOrder(freedom, turns, seconds))
    least = min((each.seconds for each in found.values()), default=0.0)
    return sorted(found.values(), key=lambda each: round(each.seconds / least, 3) if least else 0.0)


@dataclass(frozen=True)
class _CopyTask:
    """
    A copy of an op.

    Args:
        busy: the seconds of the compute stream.
        sent: the seconds of a channel, after them.
    """

    copy: int
    op: Operation
    busy: float
    sent: float = 0.0
    channel: tuple[str, ...] = ()
    users: list[int] = field(default_factory=list[int])


class _CopyGraph:
    """The copies of a loop with all that runs once, as tasks that need one another, in program order."""

    def __init__(self, loop: UnrolledLoop, cluster: Cluster) -> None:
        self.loop, self.cluster = loop, cluster
        mesh = cluster.mesh
        firsts = {cluster.placement[rank]: rank for rank in reversed(range(mesh.device_count))}
        self.costs = OpCosts(cluster, list(firsts.values()))
        arguments = self._of_arguments()
        self.tasks: list[_CopyTask] = []
        self.place: dict[Copy, int] = {}
        for op in loop.ops:
            for copy in range(loop.copies if op in loop.inside else 1):
                self.place[copy, op] = len(self.tasks)
                self.tasks.append(self._task(copy, op, is_free=op in arguments))
        self.waits_for = [0] * len(self.tasks)
        for index, task in enumerate(self.tasks):
            for source in self.sources(task):
                self.tasks[source].users.append(index)
                self.waits_for[index] += 1
        self.remaining = [0.0] * len(self.tasks)
        self.is_filler = [True] * len(self.tasks)
        for index in reversed(range(len(self.tasks))):
            task = self.tasks[index]
            longest = max((self.remaining[user] for user in task.users), default=0.0)
            self.remaining[index] = task.busy + task.sent + longest
            self.is_filler[index] = not any(loop.sends(self.tasks[u].op) or not self.is_filler[u] for u in task.users)
        self.of_phase = self._of_phases()

    def key(self, index: int, freedom: OrderFreedom) -> tuple[float, int, float, int]:
        """The smaller, the earlier."""
        task = self.tasks[index]
        phase = self.loop.phase[task.op] + freedom.ahead * task.copy
        if self.is_filler[index] and not task.channel:
            phase += freedom.later
        remaining = self.of_phase[phase] if phase < len(self.of_phase) else 0.0
        return -remaining, task.copy, -self.remaining[index], index

    def _of_phases(self) -> Sequence[float]:
        """The longest remaining time of each phase."""
        found = [0.0] * (max(self.loop.phase.values(), default=0) + 1)
        for task, remaining in zip(self.tasks, self.remaining, strict=True):
            phase = self.loop.phase[task.op]
            found[phase] = max(found[phase], remaining)
        return found

    def _of_arguments(self) -> set[Operation]:
        """What runs once and depends on arguments alone, such as gathers of parameters: it is there in time."""
        found: set[Operation] = set()
        for op in self.loop.ops:
            sources = [value.op for value in op.operands if isinstance(value, OpResult)]
            if op not in self.loop.inside and all(source in found for source in sources):
                found.add(op)
        return found

    def sources(self, task: _CopyTask) -> list[int]:
        """What makes the operands of a task."""
        found: dict[int, None] = {}
        for value in task.op.operands:
            if isinstance(value, OpResult):
                op = value.op
                copies = range(self.loop.copies) if self.loop.sums(task.op) else (task.copy,)
                found.update(dict.fromkeys(self.place[copy if op in self.loop.inside else 0, op] for copy in copies))
        return list(found)

    def _task(self, copy: int, op: Operation, *, is_free: bool) -> _CopyTask:
        if is_free:
            return _CopyTask(copy, op, 0.0)
        busy = max(self.costs(op))
        if not isinstance(op, CollectiveOp) or not communicates(op, self.cluster.mesh):
            return _CopyTask(copy, op, busy)
        work = communication_of(op, self.cluster.mesh)
        starting = work.start_seconds(self.cluster)
        busy += starting + max(self.costs.launches)
        after = max(self.costs.after(op))
        return _CopyTask(copy, op, busy, work.seconds(self.cluster) - starting + after, work.axes)


class _ListRun:
    """Goes through a graph by priorities; one use."""

    def __init__(self, graph: _CopyGraph, freedom: OrderFreedom) -> None:
        self.graph = graph
        self.keys = [graph.key(index, freedom) for index in range(len(graph.tasks))]
        self.missing = list(graph.waits_for)
        self.ready: list[tuple[bool, tuple[float, int, float, int]]] = []
        self.coming: list[tuple[float, int]] = []
        self.channels: dict[tuple[str, ...], float] = {}
        self.now = self.end = 0.0
        self.turns: list[Turn] = []
        self.unwaited: dict[Copy, None] = {}

    def run(self) -> tuple[tuple[Turn, ...], float]:
        """The turns, and when all is done."""
        for index, missing in enumerate(self.missing):
            if not missing:
                self._add(index)
        while self.ready or self.coming:
            if not self.ready:
                self.now = max(self.now, self.coming[0][0])
            while self.coming and self.coming[0][0] <= self.now:
                self._release(heappop(self.coming)[1])
            if self.ready:
                _, key = heappop(self.ready)
                self._do(key[-1])
        self.turns += ((copy, "wait", op) for copy, op in self.unwaited)
        return tuple(self.turns), max(self.end, self.now)

    def _add(self, index: int) -> None:
        heappush(self.ready, (not self.graph.tasks[index].channel, self.keys[index]))

    def _release(self, index: int) -> None:
        """A task is done, and what needs it may be."""
        for user in self.graph.tasks[index].users:
            self.missing[user] -= 1
            if not self.missing[user]:
                self._add(user)

    def _do(self, index: int) -> None:
        task, loop = self.graph.tasks[index], self.graph.loop
        # The program waits for the communications that the task needs.
        for source in self.graph.sources(task):
            given = self.graph.tasks[source]
            if (given.copy, given.op) in self.unwaited:
                del self.unwaited[given.copy, given.op]
                self.turns.append((given.copy, "wait", given.op))
        self.now += task.busy
        is_mine = task.op in loop.inside
        if not task.channel:
            if is_mine:
                self.turns.append((task.copy, "compute", task.op))
            self._release(index)
            return
        end = max(self.now, self.channels.get(task.channel, 0.0)) + task.sent
        self.channels[task.channel] = end
        self.end = max(self.end, end)
        heappush(self.coming, (end, index))
        if is_mine:
            self.turns.append((task.copy, "start", task.op))
            self.unwaited[task.copy, task.op] = None
