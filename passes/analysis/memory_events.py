"""
What the ops of a step function do with memory, in the order in which a rank runs them: the events of `liveness`.

A function without stages runs in program order, each fragment once, as the last of its parts does: what it yields is
added to its results, sums so far. A stage of a pipeline runs its program entry by entry (`dialects.stage_program`); a
value of the loop is there once for every part that is under way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import element_bytes, shape_of
from ...dialects.mesh_ops import find_mesh
from ...dialects.pipe import SCHEDULE, Action, FragmentOp, TransferOp, YieldOp
from ...dialects.spmd import AccumulateOp, CollectiveOp, FreeOp, StartOp, WaitOp
from ...dialects.stage_program import ScheduledOp, StageProgram, stage_programs
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...dialects.train import ForeachOp, overwritten_by_update
from ...ir.collectives import CollectiveKind, find_step
from ...ir.sharding import largest_local_shape
from .collective_memory import CollectiveMemory, collective_memory, is_permuted
from .liveness import Event, Made


@dataclass(frozen=True)
class ValueInPart:
    """A value of a loop, for one part."""

    value: SSAValue[Attribute]
    part: int


@dataclass(frozen=True)
class Staging:
    """Memory that a collective takes beside a value, as a share of the local value."""

    value: Hashable
    share: float


@dataclass
class Run:
    """What a rank runs: its events, and the op of each."""

    events: list[Event] = field(default_factory=list[Event])
    ops: list[Operation] = field(default_factory=list[Operation])

    def add(self, op: Operation, event: Event) -> None:
        """Append what `op` does."""
        self.events.append(event)
        self.ops.append(op)


def run_of(func: FuncOp, stage: int | None = None) -> Run:
    """The run of the ranks of a function, or of one stage of it."""
    if stage is not None and SCHEDULE in func.attributes:
        return _StageRun(func, stage_programs(func)[stage]).run
    stages = Stages(func)
    ops = [op for op in in_order(func.body.block) if stage is None or _concerns(op, stage, stages)]
    run, order = Run(), {op: index for index, op in enumerate(ops)}
    for op in ops:
        run.add(op, _event(op, order, stage, stages))
    return run


def in_order(block: Block) -> Iterator[Operation]:
    """The ops of a block, a fragment after its own."""
    for op in block.ops:
        if isinstance(op, FragmentOp):
            yield from op.body.block.ops
        yield op


def _concerns(op: Operation, stage: int, stages: Stages) -> bool:
    """Whether an op is run by a stage, all or part of it."""
    if isinstance(op, TransferOp):
        return stage in (stages.of_value(op.operand), stages.of_value(op.result))
    if isinstance(op, YieldOp) and isinstance(parent := op.parent_op(), FragmentOp):
        op = parent
    return isinstance(op, ReturnOp) or stages.of_op(op) == stage


def _event(op: Operation, order: Mapping[Operation, int], stage: int | None, stages: Stages) -> Event:
    """What an op in its place does; of a transfer, what one end of it does."""
    operands, results = list[SSAValue](op.operands), list(_results(op))
    if stage is not None:
        operands = [value for value in operands if stages.of_value(value) == stage]
        results = [value for value in results if stages.of_value(value) == stage]
    if isinstance(op, FreeOp):
        return Event((), ())
    begin, end = _begin(op, order), _end(op, order)
    reads = tuple((value, _end(_holder(op, value), order)) for value in operands)
    if isinstance(op, StartOp | CollectiveOp):
        return Event(reads, tuple(_collective(op, begin, end)))
    makes = (
        Made(result, begin, end, *(None if at is None else op.operands[at] for at in reused))
        for result, reused in ((result, reused_operands(op, position)) for position, result in enumerate(results))
    )
    return Event(reads, tuple(makes), writes_over_arguments(op))


def _collective(op: StartOp | CollectiveOp, begin: int, end: int) -> Iterator[Made]:
    """What a collective makes between its start and its wait."""
    operands = op.args if isinstance(op, StartOp) else (op.operand,)
    for operand, result in zip(operands, _results(op), strict=True):
        target = sharding_of(result)
        kind = op.collective if isinstance(op, StartOp) else op.KIND
        mesh = find_mesh(op, (op.out_shardings.data[0] if isinstance(op, StartOp) else op.out_sharding).data.mesh)
        step = find_step(kind, sharding_of(operand), target, mesh)
        assert step is not None, "verified"
        bucket = math.inf
        if len(operands) > 1:
            bucket = math.prod(largest_local_shape(shape_of(operand), step.source, mesh)) * element_bytes(operand)
        memory = collective_memory(step, shape_of(operand), mesh, is_permuted(operand), bucket)
        yield from made_by_collective(memory, kind, operand, result, begin, end)


def made_by_collective(
    memory: CollectiveMemory,
    kind: CollectiveKind,
    operand: Hashable,
    result: Hashable,
    begin: int | None,
    end: int | None,
) -> Iterator[Made]:
    """The result of one step, and what it holds besides, between the events `begin` and `end`."""
    yield Made(
        result,
        end if memory.is_late else begin,
        end,
        view_of=operand if kind is CollectiveKind.SLICE else None,
        over=operand if memory.in_place else None,
    )
    for value, share in ((operand, memory.of_operand), (result, memory.of_result)):
        if share:
            yield Made(Staging(value, share), begin, end)


def _holder(op: Operation, value: SSAValue) -> Operation:
    """The op until whose end `op` needs an operand: its fragment where that takes the operand from around it."""
    parent, made = op.parent_op(), value.owner if isinstance(value.owner, Block) else value.owner.parent
    return parent if isinstance(parent, FragmentOp) and parent.body.block is not made else op


def _begin(op: Operation, order: Mapping[Operation, int]) -> int:
    """The index of the op from which the results of `op` need memory."""
    first = op.body.block.first_op if isinstance(op, FragmentOp) else None
    return order[first if first is not None else op]


def _end(op: Operation, order: Mapping[Operation, int]) -> int:
    """The index of the op up to which `op` needs its operands: a started collective does until its wait."""
    return order[_wait(op) if isinstance(op, StartOp) else op]


def _wait(start: StartOp) -> Operation:
    return next(iter(start.token.uses)).operation


def _results(op: Operation) -> Iterator[SSAValue]:
    """The values for which `op` may need memory: a start makes room for what its wait gives."""
    if isinstance(op, StartOp):
        yield from _wait(op).results
    elif not isinstance(op, WaitOp):
        yield from op.results


def reused_operands(op: Operation, position: int) -> tuple[int | None, int | None]:
    """
    The operands whose memory the result at `position` may have: the one that it looks at, if it has none of its own,
    and the one that it may be written over.
    """
    match op:
        case _ if (written := overwritten_by_update(op)):
            return None, next(operand for operand, result in written if result == position)
        case AccumulateOp():
            return None, 0
        case AtenOp() if op.spec.view:
            return 0, None
        case AtenOp() if op.overload == "add.Tensor" and _alike(op):
            return None, 0
        case ForeachOp():
            return None, position
        case _:
            return None, None


def writes_over_arguments(op: Operation) -> bool:
    """Whether an op may write over arguments too: an update of those that it replaces."""
    return bool(overwritten_by_update(op))


def _alike(op: AtenOp) -> bool:
    """Whether the first operand takes the room of the result on every rank."""
    if op.args[0].type != op.outs[0].type:
        return False
    return op.signature is None or op.signature.operands[0].dims == op.signature.results[0].dims


class _StageRun:
    """Collects the run of one stage that has a schedule; one use."""

    def __init__(self, func: FuncOp, program: StageProgram) -> None:
        self.stage, self.stages, self.loop = program.stage, Stages(func), program.loop
        self.run, self.begun = Run(), set[SSAValue]()
        done = func.body.block.last_op
        assert isinstance(done, ReturnOp), "a step returns"
        self.outside = {*(op for op in program.ops if op not in self.loop), done}
        self.order = dict[Operation, int]()
        index = 0
        for each in program.entries:
            self.order[each.op] = index
            index += len(each.op.body.block.ops) if isinstance(each.op, FragmentOp) else 1
        self.order[done] = index
        for each in program.entries:
            self._add(each)
        self.run.add(done, _event(done, self.order, self.stage, self.stages))

    def _add(self, entry: ScheduledOp) -> None:
        match entry.op:
            case FragmentOp() if entry.part is not None:
                self._fragment(entry.op, entry.part)
            case TransferOp():
                self.run.add(entry.op, self._transfer(entry.op, entry.action, entry.part))
            case op:
                self.run.add(op, _event(op, self.order, self.stage, self.stages))

    def _transfer(self, op: TransferOp, action: Action, part: int | None) -> Event:
        """What one end of a transfer does: the sender reads the value, the receiver has memory from its start on."""
        if self.stages.of_value(op.operand) == self.stage:
            sent = op.operand if part is None else ValueInPart(op.operand, part)
            return Event(((sent, None),) if action is Action.START else (), ())
        arrived = op.result if part is None else ValueInPart(op.result, part)
        return Event((), (Made(arrived),)) if action is Action.START else Event(((arrived, None),), ())

    def _fragment(self, op: FragmentOp, part: int) -> None:
        """One part: the body on values of this part, and then what it hands on and what it adds to."""
        body = list(op.body.block.ops)
        order = {each: len(self.run.ops) + index for index, each in enumerate(body)}
        end = order[op] = order[op.terminator]
        inside: set[SSAValue | None] = {result for each in body for result in each.results}
        looped: set[SSAValue | None] = {result for each in self.loop for result in each.results}

        def of_part(value: Hashable | None) -> Hashable | None:
            found = cast("SSAValue[Attribute] | None", value)
            return ValueInPart(found, part) if found is not None and (found in inside or found in looped) else found

        def staged(value: Hashable) -> Hashable:
            return Staging(of_part(value.value), value.share) if isinstance(value, Staging) else of_part(value)

        for each in body[:-1]:
            event = _event(each, order, None, self.stages)
            reads = tuple((of_part(value), until if value in inside else end) for value, until in event.reads)
            makes = (
                Made(staged(m.value), m.begin, m.end, of_part(m.view_of), of_part(m.over)) for m in event.makes
            )
            self.run.add(each, Event(reads, tuple(makes), event.over_arguments))
        self.run.add(op, self._handed_on(op, part, of_part))

    def _handed_on(self, op: FragmentOp, part: int, of_part: Callable[[Hashable | None], Hashable | None]) -> Event:
        reads: list[tuple[Hashable, int | None]] = []
        makes: list[Made] = []
        for value, out in zip(op.terminator.args, op.outs, strict=True):
            given = of_part(value)
            reads.append((given, None))
            makes.append(Made(ValueInPart(out, part), view_of=given))
            if not self._is_summed(out):
                continue
            if out in self.begun:
                reads.append((out, None))
            else:
                makes.append(Made(out, view_of=given))
                self.begun.add(out)
        return Event(tuple(reads), tuple(makes))

    def _is_summed(self, out: SSAValue) -> bool:
        """Whether a result of a fragment is read, as the sum of its parts, outside of the loop."""
        users = (use.operation for use in out.uses)
        return any(user in self.outside for user in users)
