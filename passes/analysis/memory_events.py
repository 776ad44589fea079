"""
Build the events of `liveness`: the use of memory by each op of a step function, in the order that a rank runs them.

A function without stages runs in program order. Each of its fragments runs once, as for the last part: it adds its
yielded values to its results, which are running sums, each as soon as it is computed if the fragment does not need it
any more (`FragmentOp.is_added_at_once`). A stage of a pipeline runs its program entry by entry
(`dialects.stage_program`); a value of the loop exists once for every part in flight.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects.aten import AtenOp, OpaqueOp
from ...dialects.compute import element_bytes, shape_of
from ...dialects.mesh_ops import find_mesh
from ...dialects.pipe import SCHEDULE, Action, FragmentOp, TransferOp, YieldOp
from ...dialects.reuse import reusable_operands, reused_by_result, reuses_all_or_none
from ...dialects.spmd import AccumulateOp, CollectiveOp, FreeOp, StartOp, WaitOp
from ...dialects.stage_program import ScheduledOp, StageProgram, stage_programs
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...dialects.train import overwritten_by_update
from ...ir.collectives import CollectiveKind, find_step
from ...ir.sharding import Reduction, largest_local_shape
from .collective_memory import CollectiveMemory, collective_memory, is_permuted
from .liveness import Definition, Event


class ValueInPart(NamedTuple):
    """A value of a loop, for one part of the loop."""

    value: SSAValue[Attribute]
    part: int


@dataclass(frozen=True)
class Staging:
    """Memory that a collective needs besides a value, as a share of the local value."""

    value: Hashable
    share: float


@dataclass
class Run:
    """The execution of a rank: its events, and the op of each event."""

    events: list[Event] = field(default_factory=list[Event])
    ops: list[Operation] = field(default_factory=list[Operation])

    def add(self, op: Operation, event: Event) -> None:
        """Append the event of `op`."""
        self.events.append(event)
        self.ops.append(op)


def run_of(func: FuncOp, stage: int | None = None) -> Run:
    """Return the run of the ranks of a function, or of one stage of it."""
    if stage is not None and SCHEDULE in func.attributes:
        return _StageRun(func, stage_programs(func)[stage]).run
    stages = Stages(func)
    ops = [op for op in in_order(func.body.block) if stage is None or _concerns(op, stage, stages)]
    run, order = Run(), {op: index for index, op in enumerate(ops)}
    for op in ops:
        run.add(op, event_of(op, order, stage, stages))
    return run


def sent_values(func: FuncOp, stage: int | None, stages: Stages) -> list[SSAValue]:
    """Return the values that a stage sends; later ops may not overwrite them, since they may still be in flight."""
    transfers = (op for op in func.body.block.ops if isinstance(op, TransferOp))
    return [op.operand for op in transfers if stages.of_value(op.operand) == stage]


def in_order(block: Block) -> Iterator[Operation]:
    """Yield the ops of a block; a fragment comes after its own ops."""
    for op in block.ops:
        if isinstance(op, FragmentOp):
            yield from op.body.block.ops
        yield op


def _concerns(op: Operation, stage: int, stages: Stages) -> bool:
    """Return whether a stage runs an op, or one end of it."""
    if isinstance(op, TransferOp):
        return stage in (stages.of_value(op.operand), stages.of_value(op.result))
    if isinstance(op, YieldOp) and isinstance(parent := op.parent_op(), FragmentOp):
        op = parent
    return isinstance(op, ReturnOp) or stages.of_op(op) == stage


def event_of(
    op: Operation, order: Mapping[Operation, int], stage: int | None, stages: Stages, *, decide: bool = False
) -> Event:
    """
    Return the event of an op in its place; for a transfer, of one end of it.

    Args:
        order: the index of the event of each op.
        decide: whether to leave the reuse of memory open, even if the program decides it.
    """
    operands, results = list(_read_by(op)), list(results_of(op))
    if stage is not None:
        operands = [value for value in operands if stages.of_value(value) == stage]
        results = [value for value in results if stages.of_value(value) == stage]
    if isinstance(op, FreeOp):
        return Event((), ())
    first = op.body.block.first_op if isinstance(op, FragmentOp) else None
    begin, end = order[first if first is not None else op], _end(op, order)
    reads = tuple((value, _end(_holder(op, value), order)) for value in operands)
    reused = None if decide else reused_by_result(op)
    if isinstance(op, StartOp | CollectiveOp):
        return Event(reads, tuple(_collective(op, begin, end, reused)))
    reusable = reusable_operands(op)
    makes = (
        _made(op, result, begin, end, reusable.get(position), None if reused is None else reused[position])
        for position, result in enumerate(results)
    )
    return Event(reads, tuple(makes), bool(overwritten_by_update(op)), reuses_all_or_none(op))


def _read_by(op: Operation) -> Iterator[SSAValue]:
    """Yield the operands that are alive until an op; most values that a fragment sums up have been freed by then."""
    fragment = op.parent_op() if isinstance(op, YieldOp) else None
    for index, value in enumerate(op.operands):
        if not (isinstance(fragment, FragmentOp) and fragment.is_added_at_once(index)):
            yield value


def _made(op: Operation, result: SSAValue, begin: int, end: int, over: int | None, taken: int | None) -> Definition:
    """
    Return the definition of a result of an op that is not a collective.

    Args:
        over: index of the operand that the result may overwrite, or None.
        taken: index of the operand that it overwrites, -1 for none, or None before the decision.
    """
    if isinstance(op, FragmentOp):
        return Definition(result, begin, end)
    looks = viewed_operand(op)
    if taken is not None and taken >= 0:
        over = taken
    elif over is not None and not _is_beside(op.operands[over], op):
        over = None
    return Definition(
        result,
        begin,
        end,
        view_of=None if looks is None else op.operands[looks],
        over=None if over is None else op.operands[over],
        decided=None if taken is None else taken >= 0,
        in_place=not isinstance(op, AccumulateOp) or op.reduction is Reduction.SUM,
        may_share=tuple(op.operands) if isinstance(op, OpaqueOp) else (),
    )


def _is_beside(value: SSAValue, op: Operation) -> bool:
    """Return whether a value belongs to the block of an op; other parts of the loop read values from outside, too."""
    return (value.owner if isinstance(value.owner, Block) else value.owner.parent) is op.parent


def _collective(op: StartOp | CollectiveOp, begin: int, end: int, reused: Sequence[int] | None) -> Iterator[Definition]:
    """Yield the definitions of a collective between its start and its wait."""
    operands = op.args if isinstance(op, StartOp) else (op.operand,)
    for position, (operand, result) in enumerate(zip(operands, results_of(op), strict=True)):
        target = sharding_of(result)
        kind = op.collective if isinstance(op, StartOp) else op.KIND
        mesh = find_mesh(op, (op.out_shardings.data[0] if isinstance(op, StartOp) else op.out_sharding).data.mesh)
        step = find_step(kind, sharding_of(operand), target, mesh)
        assert step is not None, "verified"
        bucket = math.inf
        if len(operands) > 1:
            bucket = math.prod(largest_local_shape(shape_of(operand), step.source, mesh)) * element_bytes(operand)
        method = op.method.data if op.method is not None else "flat"
        memory = collective_memory(step, shape_of(operand), mesh, is_permuted(operand), bucket, method)
        decided = reused[position] >= 0 if reused is not None else None if _is_beside(operand, op) else False
        yield from made_by_collective(memory, kind, operand, result, begin, end, decided)


def made_by_collective(
    memory: CollectiveMemory,
    kind: CollectiveKind,
    operand: Hashable,
    result: Hashable,
    begin: int | None,
    end: int | None,
    decided: bool | None = None,
) -> Iterator[Definition]:
    """
    Yield the result of one step and its extra memory, between the events `begin` and `end`.

    Args:
        decided: whether the result takes over the operand's memory, or None if the analysis decides.
    """
    yield Definition(
        result,
        end if memory.is_late else begin,
        end,
        view_of=operand if kind is CollectiveKind.SLICE else None,
        over=operand if kind is CollectiveKind.ALL_REDUCE else None,
        decided=decided,
        in_place=memory.in_place,
        may_share=(operand,) if memory.may_share else (),
    )
    for value, share in ((operand, memory.of_operand), (result, memory.of_result)):
        if share:
            yield Definition(Staging(value, share), begin, end)


def _holder(op: Operation, value: SSAValue) -> Operation:
    """Return the op that needs an operand of `op` last: its fragment if the operand comes from outside, or `op`."""
    parent, producer_block = op.parent_op(), value.owner if isinstance(value.owner, Block) else value.owner.parent
    return parent if isinstance(parent, FragmentOp) and parent.body.block is not producer_block else op


def _end(op: Operation, order: Mapping[Operation, int]) -> int:
    """Return the index of the last op that needs the operands of `op`: for a started collective, of its wait."""
    return order[_wait(op) if isinstance(op, StartOp) else op]


def _wait(start: StartOp) -> Operation:
    return next(iter(start.token.uses)).operation


def results_of(op: Operation) -> Iterator[SSAValue]:
    """Yield the values that `op` may allocate memory for; a start allocates it for the results of its wait."""
    if isinstance(op, StartOp):
        yield from _wait(op).results
    elif not isinstance(op, WaitOp):
        yield from op.results


def first_part_of(op: FragmentOp, position: int, looped: Container[Operation], *, decide: bool = False) -> Definition:
    """
    Return the definition of the sum over parts that the first part of a result begins. It lies in the memory of the
    value that this part yields, if nothing else reads this value and its elements have separate memory.

    Args:
        looped: the fragments and transfers of the loop.
        decide: as in `event_of`.
    """
    value, out = op.terminator.args[position], op.outs[position]
    users = (use.operation for use in out.uses)
    is_read_by_part = any(user in looped or isinstance(user.parent_op(), FragmentOp) for user in users)
    alone = _is_beside(value, op.terminator) and not is_read_by_part and not _is_expanded(value)
    reused = None if decide else reused_by_result(op)
    decided = None if reused is None else reused[position] >= 0
    return Definition(out, over=value if alone else None, over_view=True, decided=decided)


def _is_expanded(value: SSAValue) -> bool:
    """Return whether elements of a value may share memory, because of an `expand`."""
    op = value.owner
    if not isinstance(op, AtenOp) or not op.spec.view:
        return False
    return op.overload == "expand" or _is_expanded(op.args[0])


def viewed_operand(op: Operation) -> int | None:
    """Return the index of the operand whose memory the result of a view shares, or None for other ops."""
    return 0 if isinstance(op, AtenOp) and op.spec.view else None


_FragmentEvents = tuple[tuple[Operation, Event], ...]


def _events_of(op: FragmentOp, stages: Stages) -> _FragmentEvents:
    """Return the events of the body of a fragment, whose indices count from the begin of the body."""
    body = list(op.body.block.ops)
    order: dict[Operation, int] = {inner: index for index, inner in enumerate(body)}
    end = order[op] = order[op.terminator]
    inside: set[Hashable] = {result for inner in body for result in inner.results}
    events: list[tuple[Operation, Event]] = []
    for inner in body[:-1]:
        event = event_of(inner, order, None, stages)
        reads = tuple((value, until if value in inside else end) for value, until in event.reads)
        events.append((inner, event._replace(reads=reads)))
    return tuple(events)


def _of_part(made: Definition, mine: Mapping[Hashable, Hashable], base: int) -> Definition:
    """Return a definition of a body for one part, if the body begins at the index `base`."""
    value, begin, end, view_of, over, over_view, decided, in_place, may_share = made
    return Definition(
        Staging(mine.get(value.value, value.value), value.share)
        if isinstance(value, Staging)
        else mine.get(value, value),
        None if begin is None else base + begin,
        None if end is None else base + end,
        mine.get(view_of, view_of),
        mine.get(over, over),
        over_view,
        decided,
        in_place,
        tuple([mine.get(shared, shared) for shared in may_share]) if may_share else (),
    )


class _StageRun:
    """Collects the run of one stage that has a schedule; an instance is used once."""

    def __init__(self, func: FuncOp, program: StageProgram) -> None:
        self.stage, self.stages, self.loop = program.stage, Stages(func), program.loop
        self.run, self.begun, self.bodies = Run(), set[SSAValue](), dict[FragmentOp, _FragmentEvents]()
        bodies = (op.body.block.ops if isinstance(op, FragmentOp) else () for op in self.loop)
        self.values = [result for op in (*self.loop, *chain.from_iterable(bodies)) for result in op.results]
        self.parts: dict[int, dict[Hashable, ValueInPart]] = {}
        done = func.body.block.last_op
        assert isinstance(done, ReturnOp), "a step returns"
        self.outside = {*(op for op in program.ops if op not in self.loop), done}
        self.order = dict[Operation, int]()
        index = 0
        for entry in program.entries:
            self.order[entry.op] = index
            index += len(entry.op.body.block.ops) if isinstance(entry.op, FragmentOp) else 1
        self.order[done] = index
        for entry in program.entries:
            self._add(entry)
        self.run.add(done, event_of(done, self.order, self.stage, self.stages))

    def _add(self, entry: ScheduledOp) -> None:
        match entry.op:
            case FragmentOp() if entry.part is not None:
                self._fragment(entry.op, entry.part)
            case TransferOp():
                self.run.add(entry.op, self._transfer(entry.op, entry.action, entry.part))
            case op:
                self.run.add(op, event_of(op, self.order, self.stage, self.stages))

    def _transfer(self, op: TransferOp, action: Action, part: int | None) -> Event:
        """Return the event of one end of a transfer: the sender reads the value, the receiver allocates it first."""
        if self.stages.of_value(op.operand) == self.stage:
            sent = op.operand if part is None else self._in_part(part)[op.operand]
            return Event(((sent, None),) if action is Action.START else (), ())
        arrived = op.result if part is None else self._in_part(part)[op.result]
        return Event((), (Definition(arrived),)) if action is Action.START else Event(((arrived, None),), ())

    def _fragment(self, op: FragmentOp, part: int) -> None:
        """Add one part: the body on values of this part, then the event that yields its results and adds to sums."""
        if op not in self.bodies:
            self.bodies[op] = _events_of(op, self.stages)
        mine, base = self._in_part(part), len(self.run.ops)
        for inner, event in self.bodies[op]:
            reads = tuple([(mine.get(v, v), None if until is None else base + until) for v, until in event.reads])
            makes = tuple([_of_part(definition, mine, base) for definition in event.makes])
            self.run.add(inner, Event(reads, makes, event.is_update, event.all_or_none))
        self.run.add(op, self._handed_on(op, mine))

    def _in_part(self, part: int) -> Mapping[Hashable, ValueInPart]:
        """Map each value of the loop to the value of one part."""
        if part not in self.parts:
            self.parts[part] = {value: ValueInPart(value, part) for value in self.values}
        return self.parts[part]

    def _handed_on(self, op: FragmentOp, mine: Mapping[Hashable, ValueInPart]) -> Event:
        reads: list[tuple[Hashable, int | None]] = []
        makes: list[Definition] = []
        for position, (value, out) in enumerate(zip(op.terminator.args, op.outs, strict=True)):
            if out in self.begun and op.is_added_at_once(position):
                reads.append((out, None))
                continue
            yielded = mine.get(value, value)
            reads.append((yielded, None))
            makes.append(Definition(mine[out], view_of=yielded))
            users = (use.operation for use in out.uses)
            if not any(user in self.outside for user in users):
                continue
            if out in self.begun:
                reads.append((out, None))
            else:
                first = first_part_of(op, position, self.loop)
                makes.append(first._replace(over=None if first.over is None else yielded))
                self.begun.add(out)
        return Event(tuple(reads), tuple(makes))
