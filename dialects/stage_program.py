"""
The ops that each stage of a step runs, in issue order.

A stage runs its ops in the order of the block. Its whole schedule, with the transfers of the loop, runs at the place of
its first fragment, wherever those transfers are in the block. The verifiers, `check-order`, `check-memory`, the
simulator and the emitter all read these entries, so a property proved of them holds for the program that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from .pipe import SCHEDULE, Action, FragmentOp, Slot, SlotAttr, TransferOp
from .spmd import FreeOp
from .staged import Stages


@dataclass(frozen=True)
class ScheduledOp:
    """
    One entry of a stage's program.

    Args:
        action: run an op or a fragment, start a transfer, or wait for a transfer.
        part: part of the loop, or None outside of it; outside, a fragment runs for all of its parts and a transfer
            sends one value.
    """

    action: Action
    op: Operation
    part: int | None = None


@dataclass(frozen=True)
class StageProgram:
    """
    The program of one stage in issue order, without frees and the return.

    Args:
        stage: number of the stage, or None in a step without stages.
    """

    stage: int | None
    entries: tuple[ScheduledOp, ...]

    @cached_property
    def ops(self) -> tuple[Operation, ...]:
        """The distinct ops of the entries, in the order of the block."""
        distinct = {entry.op for entry in self.entries}
        block = next(iter(distinct)).parent_block() if distinct else None
        return tuple(op for op in block.ops if op in distinct) if block is not None else ()

    @cached_property
    def loop(self) -> frozenset[Operation]:
        """The fragments and transfers that run part by part."""
        return frozenset(entry.op for entry in self.entries if entry.part is not None)


def schedule_of(func: FuncOp) -> Sequence[Sequence[Slot]]:
    """Return the slots of a function's schedule by stage; empty without a schedule."""
    attribute = func.attributes.get(SCHEDULE)
    lists = cast("ArrayAttr[ArrayAttr[SlotAttr]]", attribute).data if isinstance(attribute, ArrayAttr) else ()
    return [[slot.data for slot in listed] for listed in lists]


def stage_programs(func: FuncOp) -> list[StageProgram]:
    """Return the program of every stage of a function; without stages, the one program of all ranks."""
    stages, schedule = Stages(func), schedule_of(func)
    if not stages.names:
        ops = (op for op in func.body.block.ops if not isinstance(op, FreeOp | ReturnOp))
        return [StageProgram(None, tuple(ScheduledOp(Action.RUN, op) for op in ops))]
    listed = {_listed_as(slot) for slots in schedule for slot in slots}
    looped = {key: op for op in func.body.block.ops if (key := _key(op)) in listed}
    places: dict[int | None, Operation] = {}
    for op in sorted(looped.values(), key=lambda op: not isinstance(op, FragmentOp)):
        for stage in _stages_of(op, stages):
            places.setdefault(stage, op)
    by_stage: dict[int | None, list[ScheduledOp]] = {number: [] for number in range(len(stages.names))}
    for op in func.body.block.ops:
        if isinstance(op, FreeOp | ReturnOp):
            continue
        for stage in dict.fromkeys(_stages_of(op, stages)):
            if stage is None or stage not in by_stage:
                continue
            if _key(op) not in looped:
                by_stage[stage] += _once(op, stage, stages)
            elif places[stage] is op:
                by_stage[stage] += (ScheduledOp(s.action, looped[_listed_as(s)], s.part) for s in schedule[stage])
    return [StageProgram(stage, tuple(entries)) for stage, entries in by_stage.items()]


def _key(op: Operation) -> tuple[type[Operation], str] | None:
    """Return the key of a fragment or transfer, or None; labels are unique among ops of one kind."""
    return (type(op), op.label.data) if isinstance(op, FragmentOp | TransferOp) else None


def _listed_as(slot: Slot) -> tuple[type[Operation], str]:
    """Return the key of the op that a slot names."""
    return FragmentOp if slot.action is Action.RUN else TransferOp, slot.label


def _stages_of(op: Operation, stages: Stages) -> Iterator[int | None]:
    """Yield the stage of an op; for a transfer, its sender and its receiver."""
    if isinstance(op, TransferOp):
        yield from (stages.of_value(op.operand), stages.of_value(op.result))
    else:
        yield stages.of_op(op)


def _once(op: Operation, stage: int | None, stages: Stages) -> Iterator[ScheduledOp]:
    """Yield the entries of a stage for an op outside of its loop."""
    if not isinstance(op, TransferOp):
        yield ScheduledOp(Action.RUN, op)
        return
    yield ScheduledOp(Action.START, op)
    if stages.of_value(op.result) == stage:
        yield ScheduledOp(Action.WAIT, op)
