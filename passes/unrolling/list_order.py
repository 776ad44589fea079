"""
Order the copies of a loop by list scheduling on the streams of the simulator.

There is one compute stream, and a channel for each group of axes, which runs one communication at a time. A
communication starts as soon as its operand is computed. Whenever the compute stream is free it runs, among the ops
whose operands are available, the op of highest priority, or waits if there is none. With the seconds of ops and
communications from the cost model,

    remaining(op)  = seconds(op) + max remaining(user)        over all users of its results, `_CopyGraph`
    remaining(k)   = max remaining(op)                        over the ops of phase k
    priority(op)   = remaining(k + ahead * copy + later)      phase k, `later` only for filler, `_CopyGraph.key`

then the lower copy, then the larger remaining(op). So a copy that began a phase finishes it before another copy begins
one, as the communication after it can overlap with the others. Filler are ops whose results reach no later
communication of the loop: above all, gradients of weights. They are delayed by `later` phases and so run while the
copies wait. `ahead`, the number of phases between a copy and the next, and `later` bound the memory that is held.

Source: HiDup 3 (two copies without dependences between them); list scheduling after Graham 1969.
"""

from __future__ import annotations

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
"""The number of a copy, and an op; ops that run once belong to copy 0."""


@dataclass(frozen=True)
class OrderFreedom:
    """
    How far a list order may move copies and filler.

    Args:
        ahead: number of phases that a copy may be ahead of the next one.
        later: number of phases that filler is delayed.
    """

    ahead: int = 0
    later: int = 0


FREEDOMS = tuple(OrderFreedom(ahead, later) for ahead in (0, 1) for later in (0, 1, 4, 16))
"""The freedoms to try, in the order of the memory that they need."""


@dataclass(frozen=True)
class ListOrder:
    """An order of the copies of a loop, and its seconds until everything is done."""

    freedom: OrderFreedom
    turns: tuple[Turn, ...]
    seconds: float


def list_orders(loop: UnrolledLoop, cluster: Cluster) -> list[ListOrder]:
    """
    Return the distinct list orders of a loop, the fastest first; within a thousandth, the smallest memory comes first.
    """
    graph = _CopyGraph(loop, cluster)
    orders: dict[tuple[Turn, ...], ListOrder] = {}
    for freedom in FREEDOMS:
        turns, seconds = _ListRun(graph, freedom).run()
        orders.setdefault(turns, ListOrder(freedom, turns, seconds))
    least = min((order.seconds for order in orders.values()), default=0.0)
    return sorted(orders.values(), key=lambda order: round(order.seconds / least, 3) if least else 0.0)


@dataclass(frozen=True)
class _CopyTask:
    """
    A copy of an op.

    Args:
        busy: seconds on the compute stream.
        sent: seconds on the channel, after `busy`.
    """

    copy: int
    op: Operation
    busy: float
    sent: float = 0.0
    channel: tuple[str, ...] = ()
    users: list[int] = field(default_factory=list[int])


class _CopyGraph:
    """The copies of a loop and the ops that run once, as a graph of tasks in program order."""

    def __init__(self, loop: UnrolledLoop, cluster: Cluster) -> None:
        self.loop, self.cluster = loop, cluster
        firsts = {cluster.placement[rank]: rank for rank in reversed(range(cluster.mesh.device_count))}
        self.costs = OpCosts(cluster, list(firsts.values()))
        # Ops that run once and depend on arguments alone, such as parameter gathers, are done in time.
        arguments: set[Operation] = set()
        for op in self.loop.ops:
            sources = [value.op for value in op.operands if isinstance(value, OpResult)]
            if op not in self.loop.inside and all(source in arguments for source in sources):
                arguments.add(op)
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
        self.of_phase = [0.0] * (max(self.loop.phase.values(), default=0) + 1)
        for task, remaining in zip(self.tasks, self.remaining, strict=True):
            phase = self.loop.phase[task.op]
            self.of_phase[phase] = max(self.of_phase[phase], remaining)

    def key(self, index: int, freedom: OrderFreedom) -> tuple[float, int, float, int]:
        """Return the sort key of a task; smaller keys run earlier."""
        task = self.tasks[index]
        phase = self.loop.phase[task.op] + freedom.ahead * task.copy
        if self.is_filler[index] and not task.channel:
            phase += freedom.later
        remaining = self.of_phase[phase] if phase < len(self.of_phase) else 0.0
        return -remaining, task.copy, -self.remaining[index], index

    def sources(self, task: _CopyTask) -> list[int]:
        """Return the tasks that compute the operands of a task."""
        indices: dict[int, None] = {}
        for value in task.op.operands:
            if isinstance(value, OpResult):
                op = value.op
                copies = range(self.loop.copies) if self.loop.sums(task.op) else (task.copy,)
                indices.update(dict.fromkeys(self.place[copy if op in self.loop.inside else 0, op] for copy in copies))
        return list(indices)

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
    """Runs list scheduling on a graph; one use."""

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
        """Return the turns and the seconds until everything is done."""
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
        """Mark a task as done, and add the users that become ready."""
        for user in self.graph.tasks[index].users:
            self.missing[user] -= 1
            if not self.missing[user]:
                self._add(user)

    def _do(self, index: int) -> None:
        task, loop = self.graph.tasks[index], self.graph.loop
        # The program waits for the communications that compute the task's operands.
        for source in self.graph.sources(task):
            source_task = self.graph.tasks[source]
            if (source_task.copy, source_task.op) in self.unwaited:
                del self.unwaited[source_task.copy, source_task.op]
                self.turns.append((source_task.copy, "wait", source_task.op))
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
