"""
How long a step of a pipeline takes: its stages' timelines, each on its own clock, and the transfers between them.

Every stage goes through its own ops and, in the place of its fragments, through its schedule. A transfer begins when
its sender has come to its start and the way between the two stages is free; who waits for it goes on when it is over.
A transfer takes the latency of the link and the time of the bytes that the busiest rank sends, its receivers handing
them on at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation

from ...dialects.compute import element_bytes, value_bytes
from ...dialects.pipe import SCHEDULE, Action, FragmentOp, Slot, SlotAttr, TransferOp
from ...dialects.staged import Stages, transfers
from ...ir.cluster import Cluster
from ...ir.mesh import AxisKind
from .timeline import Clock, Timeline

_Item: TypeAlias = Operation | Slot
"""What a stage does next: an op of its own, or an entry of its schedule."""


def predict_pipeline(func: FuncOp, clusters: Sequence[Cluster], whole: Cluster) -> list[Timeline]:
    """
    The timelines of the stages of a function, from the begin of the step.

    Args:
        clusters: of the stages, in order.
        whole: of all ranks of the job, whose links lead from stage to stage.

    Raises:
        OpFailure: an op without a signature, or a resharding without a collective.
    """
    return _Run(func, clusters, whole).timelines()


@dataclass
class _Stage:
    """A stage: its clock, what it does, and how far it has come."""

    clock: Clock
    items: list[_Item]
    done: int = 0


class _Run:
    """One step; one use."""

    def __init__(self, func: FuncOp, clusters: Sequence[Cluster], whole: Cluster) -> None:
        self.func, self.known, self.whole, self.clusters = func, Stages(func), whole, clusters
        self.transfers = {op.label.data: op for op in transfers(func)}
        self.fragments = {op.label.data: op for op in func.body.block.ops if isinstance(op, FragmentOp)}
        schedule = _schedule(func)
        scheduled = {slot.label for slots in schedule for slot in slots}
        self.stages = [
            _Stage(Clock(cluster), list(self._items(index, schedule[index] if schedule else [], scheduled)))
            for index, cluster in enumerate(clusters)
        ]
        self.over: dict[tuple[str, int], float] = {}
        self.ways: defaultdict[tuple[int, int], float] = defaultdict(float)

    def _items(self, stage: int, slots: Sequence[Slot], scheduled: set[str]) -> Iterator[_Item]:
        """What a stage does, in order; its schedule stands where its first fragment does."""
        begun = False
        for op in self.func.body.block.ops:
            if isinstance(op, TransferOp):
                if op.label.data not in scheduled:
                    yield from self._once(op, stage)
            elif isinstance(op, FragmentOp) and op.label.data in scheduled:
                if self.known.of_op(op) == stage and not begun:
                    begun = True
                    yield from slots
            elif not isinstance(op, ReturnOp) and self.known.of_op(op) == stage:
                yield op

    def _once(self, op: TransferOp, stage: int) -> Iterator[Slot]:
        """A transfer that is not of parts."""
        if self.known.of_value(op.operand) == stage:
            yield Slot(Action.START, op.label.data, 0)
        if self.known.of_value(op.result) == stage:
            yield Slot(Action.WAIT, op.label.data, 0)

    def timelines(self) -> list[Timeline]:
        """Let every stage go on as far as it can until all are done."""
        while any(stage.done < len(stage.items) for stage in self.stages):
            moved = [self._go_on(index, stage) for index, stage in enumerate(self.stages)]
            assert any(moved), "the stages wait for one another"
        return [stage.clock.timeline() for stage in self.stages]

    def _go_on(self, index: int, stage: _Stage) -> bool:
        before = stage.done
        while stage.done < len(stage.items) and self._do(index, stage.clock, stage.items[stage.done]):
            stage.done += 1
        return stage.done > before

    def _do(self, index: int, clock: Clock, item: _Item) -> bool:
        """Whether an item could be done; a wait cannot before its transfer has begun."""
        if isinstance(item, Operation):
            clock.run(item)
        elif item.action is Action.RUN:
            for op in self.fragments[item.label].body.block.ops:
                clock.run(op)
        elif item.action is Action.START:
            if self.known.of_value(self.transfers[item.label].operand) == index:
                self._send(item, clock.now)
        elif (item.label, item.part) in self.over:
            clock.wait_until(self.over[item.label, item.part])
        else:
            return False
        return True

    def _send(self, slot: Slot, now: float) -> None:
        op = self.transfers[slot.label]
        source, target = self.known.of_value(op.operand), self.known.of_value(op.result)
        assert source is not None
        assert target is not None
        begin = max(now, self.ways[source, target])
        end = begin + self._seconds(op, source, target)
        self.ways[source, target] = self.over[slot.label, slot.part] = end

    def _seconds(self, op: TransferOp, source: int, target: int) -> float:
        """The seconds of one part."""
        alpha, beta = self._link(source, target)
        tasks = [task.data for task in op.tasks] if op.tasks is not None else []
        if not tasks:
            return alpha + beta * value_bytes(op.operand) / self._parts(source)
        sent: defaultdict[tuple[int, int], float] = defaultdict(float)
        for task in tasks:
            for rank in (task.sender, *task.receivers[:-1]):
                sent[task.part, rank] += task.elements * element_bytes(op.operand)
        return alpha + beta * max(sent.values())

    def _parts(self, stage: int) -> int:
        mesh = self.clusters[stage].mesh
        return mesh.parts(axis.name for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL)

    def _link(self, source: int, target: int) -> tuple[float, float]:
        """(alpha, beta) of the slowest link between the first ranks of two stages."""
        begins = [sum(c.mesh.device_count for c in self.clusters[:stage]) for stage in (source, target)]
        here, there = (self.whole.mesh.coordinates(rank) for rank in begins)
        links = [link for link in self.whole.links if here.get(link.axis) != there.get(link.axis)]
        return max(link.alpha for link in links), max(link.beta for link in links)


def _schedule(func: FuncOp) -> list[list[Slot]]:
    """The schedule of a function, by stage; empty where it has none."""
    given = func.attributes.get(SCHEDULE)
    stages = cast("ArrayAttr[ArrayAttr[Attribute]]", given).data if isinstance(given, ArrayAttr) else ()
    return [[slot.data for slot in stage if isinstance(slot, SlotAttr)] for stage in stages]


def longest(timelines: Sequence[Timeline]) -> Mapping[str, float]:
    """
    The seconds of a step and how they are spent: computing, on the stage that computes most, and waiting for
    collectives, transfers and other stages there.
    """
    seconds = max(timeline.seconds for timeline in timelines)
    busiest = max(timeline.compute_seconds for timeline in timelines)
    return {"step": seconds, "compute": busiest, "exposed": seconds - busiest}
