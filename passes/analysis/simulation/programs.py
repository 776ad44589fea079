"""
Read the instructions of each class of ranks from the scheduled IR.

Consecutive ops that compute are one span, and the body of a fragment is read once, however often it runs. A collective
is issued, and awaited at once unless it is a `spmd.start`; the sender and the receiver issue a transfer.
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
from ..fusion import Parts, fused_parts
from .costs import OpCosts, Seconds, is_over_space
from .network import Traffic, transfer_traffic
from .places import Division


@dataclass(frozen=True, eq=False)
class Span:
    """
    Ops that a compute stream runs one after the other.

    Args:
        ends: for each class, the seconds from the begin of the span to the end of each op.
    """

    ops: tuple[Operation, ...]
    ends: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class Issue:
    """Issue a collective or transfer, which begins when all participants have issued it."""

    traffic: Traffic


@dataclass(frozen=True, eq=False)
class Await:
    """Block the compute stream until a collective or transfer ends."""

    traffic: Traffic


@dataclass(frozen=True, eq=False)
class End:
    """
    The fixed cost of a step, and the delay of its last rank, counted as time of `op`.

    Args:
        overhead: fixed cost in seconds, for each class.
    """

    op: Operation
    overhead: Seconds


Instruction: TypeAlias = Span | Issue | Await | End
Program: TypeAlias = list[tuple[Instruction, int]]
"""Instructions, each with its part of the loop (0 outside of loops)."""


def writers_of(func: FuncOp, divisions: Sequence[Division]) -> list[ProgramWriter]:
    """Return writers for the programs of all places, under any schedule of the function."""
    stages = Stages(func)
    crossing = {op.label.data: transfer_traffic(op, stages, divisions) for op in transfers(func)}
    parts = fused_parts(func)
    return [ProgramWriter(func, division, crossing, parts) for division in divisions]


def written_programs(func: FuncOp, writers: Sequence[ProgramWriter]) -> list[Program]:
    """Return the programs under the current schedule of the function."""
    by_stage = {program.stage: program.entries for program in stage_programs(func)}
    return [writer.program(by_stage[writer.division.place.stage]) for writer in writers]


class ProgramWriter:
    """Writes the program of one place under several schedules; it reads equal consecutive ops once."""

    def __init__(self, func: FuncOp, division: Division, crossing: Mapping[str, Traffic], parts: Parts) -> None:
        self.division, self.crossing = division, crossing
        self.cluster = division.place.cluster
        self.costs = OpCosts(self.cluster, [ranks[0] for ranks in division.classes], parts)
        self.end = func.body.block.last_op
        self.bodies: dict[FragmentOp, list[Instruction]] = {}
        self.outside: dict[tuple[Operation, ...], list[Instruction]] = {}
        self.issued: dict[Operation, Traffic] = {}

    def program(self, entries: Iterable[ScheduledOp]) -> Program:
        """Return the program of a stage with these entries."""
        program: Program = []
        pending: list[Operation] = []
        for entry in entries:
            op = entry.op
            if not isinstance(op, FragmentOp | TransferOp):
                pending.append(op)
                continue
            program += ((instruction, 0) for instruction in self.instructions_outside(pending))
            pending = []
            if isinstance(op, FragmentOp):
                parts = range(self.cluster.mesh.axis(op.axis.data).size) if entry.part is None else (entry.part,)
                program += ((inner, part) for part in parts for inner in self.body(op))
            else:
                kind = Issue if entry.action is Action.START else Await
                program.append((kind(self.crossing[op.label.data]), entry.part or 0))
        program += ((instruction, 0) for instruction in self.instructions_outside(pending))
        assert self.end is not None, "a step returns"
        return [*program, (End(self.end, tuple(device.overhead for device in self.costs.devices)), 0)]

    def body(self, op: FragmentOp) -> list[Instruction]:
        """Return the instructions of a fragment."""
        if op not in self.bodies:
            self.bodies[op] = self.instructions(op.body.block.ops)
        return self.bodies[op]

    def instructions_outside(self, ops: Sequence[Operation]) -> list[Instruction]:
        """Return the instructions of consecutive ops outside of fragments, which are the same under many schedules."""
        if (key := tuple(ops)) not in self.outside:
            self.outside[key] = self.instructions(ops)
        return self.outside[key]

    def instructions(self, ops: Iterable[Operation]) -> list[Instruction]:
        """Return the instructions of consecutive ops."""
        instructions: list[Instruction] = []
        pending: list[tuple[Operation, Seconds]] = []
        for op in ops:
            if any(seconds := self.costs(op)):
                pending.append((op, seconds))
            if communicates := list(self.communication(op)):
                instructions += [*_span(pending), *communicates]
                pending = [(op, after)] if any(after := self.costs.after(op)) else []
        return [*instructions, *_span(pending)]

    def communication(self, op: Operation) -> Iterator[Instruction]:
        """Yield the instructions that issue or await the communication of an op."""
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
        """Return the traffic of a collective op."""
        mesh, work = self.cluster.mesh, self.costs.communication(op)
        seconds = work.seconds(self.cluster)
        if isinstance(op, StartOp):
            seconds -= work.start_seconds(self.cluster)
        latency, _ = self.cluster.collective_costs(work.kind, work.axes, work.method)
        sent = sent_bytes(work.kind, mesh.parts(work.axes), work.whole_bytes)
        traffic = Traffic(op, work.kind.value, (self.division,), work.axes, seconds, min(latency, seconds), sent)
        self.issued[op] = traffic
        return traffic


def _span(timed: Sequence[tuple[Operation, Seconds]]) -> Iterator[Span]:
    if timed:
        ops = tuple(op for op, _ in timed)
        yield Span(ops, tuple(tuple(accumulate(mine)) for mine in zip(*(seconds for _, seconds in timed), strict=True)))
