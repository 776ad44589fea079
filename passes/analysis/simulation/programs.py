"""
The instructions of each class of ranks, read from the scheduled IR.

Ops that compute one after the other are one span, and the body of a fragment is read once, however often it runs. A
collective is issued, and waited for where it is not a `spmd.start`; a transfer is issued on both sides of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ....dialects.pipe import Action, FragmentOp, TransferOp
from ....dialects.spmd import CollectiveOp, PartialOp, SliceOp, StartOp, WaitOp
from ....dialects.stage_program import ScheduledOp, stage_programs
from ....dialects.staged import Stages, transfers
from ....ir.cluster import sent_bytes
from ..durations import communication_of
from ..fusion import Parts, fused_parts
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
    The fixed cost of a step, and by how much its last rank ends later, counted as time of `op`.

    Args:
        overhead: by class, the first of these in seconds.
    """

    op: Operation
    overhead: Seconds


Instruction: TypeAlias = Span | Issue | Await | End
Program: TypeAlias = list[tuple[Instruction, int]]
"""Instructions, each with the part of the loop that it is for (0 outside of loops)."""


def writers_of(func: FuncOp, divisions: Sequence[Division]) -> list[ProgramWriter]:
    """What writes the programs of every place, under any schedule of the function."""
    known = Stages(func)
    crossing = {op.label.data: transfer_traffic(op, known, divisions) for op in transfers(func)}
    parts = fused_parts(func)
    return [ProgramWriter(func, each, crossing, parts) for each in divisions]


def written_programs(func: FuncOp, writers: Sequence[ProgramWriter]) -> list[Program]:
    """The programs under the schedule that the function has now."""
    by_stage = {program.stage: program.entries for program in stage_programs(func)}
    return [each.program(by_stage[each.division.place.stage]) for each in writers]


class ProgramWriter:
    """Writes the program of one place; reads bodies of fragments once, which no schedule changes."""

    def __init__(self, func: FuncOp, division: Division, crossing: Mapping[str, Traffic], parts: Parts) -> None:
        self.division, self.crossing = division, crossing
        self.cluster = division.place.cluster
        self.costs = OpCosts(self.cluster, [ranks[0] for ranks in division.classes], parts)
        self.end = func.body.block.last_op
        self.bodies: dict[FragmentOp, list[Instruction]] = {}
        self.issued: dict[Operation, Traffic] = {}

    def program(self, entries: Iterable[ScheduledOp]) -> Program:
        """What a stage's program comes to."""
        found: Program = []
        pending: list[Operation] = []
        for each in entries:
            op = each.op
            if not isinstance(op, FragmentOp | TransferOp):
                pending.append(op)
                continue
            found += ((begun, 0) for begun in self.instructions(pending))
            pending = []
            if isinstance(op, FragmentOp):
                parts = range(self.cluster.mesh.axis(op.axis.data).size) if each.part is None else (each.part,)
                found += ((inner, part) for part in parts for inner in self.body(op))
            else:
                kind = Issue if each.action is Action.START else Await
                found.append((kind(self.crossing[op.label.data]), each.part or 0))
        found += ((begun, 0) for begun in self.instructions(pending))
        assert self.end is not None, "a step returns"
        return [*found, (End(self.end, tuple(device.overhead for device in self.costs.devices)), 0)]

    def body(self, op: FragmentOp) -> list[Instruction]:
        """The instructions of a fragment."""
        if op not in self.bodies:
            self.bodies[op] = self.instructions(op.body.block.ops)
        return self.bodies[op]

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
