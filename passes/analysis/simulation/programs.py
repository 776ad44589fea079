"""
What ranks do, one instruction after the other, as the scheduled IR says.

Ops that compute one after the other are one span, and the body of a fragment is read once, however often it runs. A
collective is issued, and waited for where it is not a `spmd.start`; a transfer is issued on both sides of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias, cast

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation

from ....dialects.pipe import SCHEDULE, Action, FragmentOp, Slot, SlotAttr, TransferOp
from ....dialects.spmd import CollectiveOp, PartialOp, SliceOp, StartOp, WaitOp
from ....dialects.staged import Stages, transfers
from ....ir.cluster import sent_bytes
from ..durations import communication_of
from .costs import OpCosts, Seconds, is_over_space
from .network import Traffic, transfer_traffic
from .places import Division


@dataclass(frozen=True, eq=False)
class Span:
    """
    Ops that a compute stream runs one after the other.

    Args:
        ends: by class, the seconds from the begin of the span to the end of each op.
    """

    ops: tuple[Operation, ...]
    ends: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class Issue:
    """Have a collective or transfer begin when all who take part have issued it."""

    traffic: Traffic


@dataclass(frozen=True, eq=False)
class Await:
    """Hold up the compute stream until a collective or transfer is over."""

    traffic: Traffic


@dataclass(frozen=True, eq=False)
class End:
    """
    What a step costs beside its ops, and by how much its last rank ends later, as if `op` took it.

    Args:
        overhead: by class, the first of these in seconds.
    """

    op: Operation
    overhead: Seconds


Instruction: TypeAlias = Span | Issue | Await | End
Program: TypeAlias = list[tuple[Instruction, int]]
"""Instructions, each with the part of the loop that it is for (0 outside of loops)."""

_Item: TypeAlias = Operation | Slot
"""What a stage does next: an op of its own, or an entry of its schedule."""


def programs_of(func: FuncOp, divisions: Sequence[Division]) -> list[Program]:
    """The program of every place; OpFailure at an op without a signature, or a resharding without a collective."""
    known = Stages(func)
    crossing = {op.label.data: transfer_traffic(op, known, divisions) for op in transfers(func)}
    items = _items(func, known, [division.place.stage for division in divisions], _schedule(func))
    return [_Writer(func, each, crossing).program(items[each.place.stage]) for each in divisions]


class _Writer:
    """Writes the program of one place."""

    def __init__(self, func: FuncOp, division: Division, crossing: Mapping[str, Traffic]) -> None:
        self.division, self.crossing = division, crossing
        self.cluster = division.place.cluster
        self.costs = OpCosts(self.cluster, [ranks[0] for ranks in division.classes])
        self.fragments = {op.label.data: op for op in func.body.block.ops if isinstance(op, FragmentOp)}
        self.bodies: dict[str, list[Instruction]] = {}
        self.issued: dict[Operation, Traffic] = {}

    def program(self, items: Iterable[_Item]) -> Program:
        """What the items come to."""
        found: Program = []
        pending: list[Operation] = []
        for item in items:
            if isinstance(item, Operation) and not isinstance(item, FragmentOp):
                pending.append(item)
                continue
            found += ((each, 0) for each in self.instructions(pending))
            pending = []
            if isinstance(item, FragmentOp):
                for part in range(self.cluster.mesh.axis(item.axis.data).size):
                    found += ((each, part) for each in self.body(item.label.data))
            elif item.action is Action.RUN:
                found += ((each, item.part) for each in self.body(item.label))
            else:
                kind = Issue if item.action is Action.START else Await
                found.append((kind(self.crossing[item.label]), item.part))
        found += ((each, 0) for each in self.instructions(pending))
        overhead = tuple(device.overhead for device in self.costs.devices)
        return [*found, *((End(last, overhead), 0) for last in pending[-1:])]

    def body(self, label: str) -> list[Instruction]:
        """The instructions of a fragment."""
        if label not in self.bodies:
            self.bodies[label] = self.instructions(self.fragments[label].body.block.ops)
        return self.bodies[label]

    def instructions(self, ops: Iterable[Operation]) -> list[Instruction]:
        """The instructions of ops in a row."""
        found: list[Instruction] = []
        pending: list[tuple[Operation, Seconds]] = []
        for op in ops:
            if any(seconds := self.costs(op)):
                pending.append((op, seconds))
            if communicates := list(self.communication(op)):
                found += [*_span(pending), *communicates]
                pending = [(op, after)] if any(after := self.costs.after(op)) else []
        return [*found, *_span(pending)]

    def communication(self, op: Operation) -> Iterator[Instruction]:
        """What an op has others do, or waits for."""
        match op:
            case StartOp():
                yield Issue(self.collective(op))
            case WaitOp():
                yield Await(self.issued[op.start])
            case SliceOp() | PartialOp():
                pass
            case CollectiveOp() if is_over_space(op, self.cluster):
                traffic = self.collective(op)
                yield Issue(traffic)
                yield Await(traffic)
            case _:
                pass

    def collective(self, op: CollectiveOp | StartOp) -> Traffic:
        """What a collective op communicates."""
        mesh = self.cluster.mesh
        what = communication_of(op, mesh)
        seconds = what.seconds(self.cluster)
        if isinstance(op, StartOp):
            seconds -= what.start_seconds(self.cluster)
        latency, _ = self.cluster.collective_costs(what.kind, what.axes, what.method)
        sent = sent_bytes(what.kind, mesh.parts(what.axes), what.whole_bytes)
        found = Traffic(op, what.kind.value, (self.division,), what.axes, seconds, min(latency, seconds), sent)
        self.issued[op] = found
        return found


def _span(timed: Sequence[tuple[Operation, Seconds]]) -> Iterator[Span]:
    if timed:
        ops = tuple(op for op, _ in timed)
        yield Span(ops, tuple(tuple(accumulate(mine)) for mine in zip(*(seconds for _, seconds in timed), strict=True)))


def _items(
    func: FuncOp, known: Stages, stages: Sequence[int | None], schedule: Sequence[Sequence[Slot]]
) -> dict[int | None, list[_Item]]:
    """By stage, what it does, in order, and the return; its schedule stands where its first fragment does."""
    found: dict[int | None, list[_Item]] = {stage: [] for stage in stages}
    scheduled = {slot.label for slots in schedule for slot in slots}
    begun: set[int] = set()
    for op in func.body.block.ops:
        if isinstance(op, TransferOp):
            if op.label.data not in scheduled:
                for stage in (known.of_value(op.operand), known.of_value(op.result)):
                    found[stage].append(Slot(Action.START, op.label.data, 0))
                found[known.of_value(op.result)].append(Slot(Action.WAIT, op.label.data, 0))
        elif isinstance(op, ReturnOp):
            for items in found.values():
                items.append(op)
        elif isinstance(op, FragmentOp) and op.label.data in scheduled:
            if (stage := known.of_op(op)) is not None and stage not in begun:
                begun.add(stage)
                found[stage] += schedule[stage]
        elif (stage := known.of_op(op) if known.names else None) in found:
            found[stage].append(op)
    return found


def _schedule(func: FuncOp) -> list[list[Slot]]:
    """The schedule of a function, by stage; empty where it has none."""
    given = func.attributes.get(SCHEDULE)
    stages = cast("ArrayAttr[ArrayAttr[Attribute]]", given).data if isinstance(given, ArrayAttr) else ()
    return [[slot.data for slot in stage if isinstance(slot, SlotAttr)] for stage in stages]
