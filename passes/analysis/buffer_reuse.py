"""Decide which results reuse the memory of operands: `live_buffers` of every block, in the order of execution."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Sequence

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import python_value
from ...dialects.pipe import FragmentOp, TransferOp, YieldOp
from ...dialects.spmd import FreeOp
from ...dialects.stage_program import stage_programs
from ...dialects.staged import Stages
from ...dialects.train import UPDATES
from .liveness import Buffers, Definition, Event, live_buffers
from .memory_events import event_of, first_part_of, results_of, sent_values


def reuse_of(func: FuncOp) -> Iterator[tuple[Operation, Sequence[int]]]:
    """
    Yield each op that may reuse memory, with the operand that each result takes over or -1, as in `spmd.reuses`.

    An operand from outside the fragment is read by other parts of the loop, too, and is never overwritten.
    """
    stages, programs = Stages(func), stage_programs(func)
    looped = {op for program in programs for op in program.loop}
    for op in func.body.block.ops:
        if isinstance(op, FragmentOp):
            yield from _in_fragment(op, looped)
    updated = set(_replaced_arguments(func))
    done = func.body.block.last_op
    assert isinstance(done, ReturnOp), "a step returns"
    for program in programs:
        stage = program.stage
        mine = [value for value in func.body.block.args if stage is None or stages.of_value(value) == stage]
        ops = [*program.ops, done]
        events = list(_events(ops, stage, stages))
        yield from _decided(ops, events, live_buffers(events, mine, updated, sent_values(func, stage, stages)))


def _replaced_arguments(func: FuncOp) -> Iterator[SSAValue]:
    """Yield the arguments whose new value is a result."""
    for entry in func.res_attrs.data if func.res_attrs is not None else ():
        if (index := entry.data.get(UPDATES)) is not None:
            yield func.body.block.args[python_value(index)]


def _events(ops: Sequence[Operation], stage: int | None, stages: Stages) -> Iterator[Event]:
    """Yield the events of the ops of a block. A fragment counts as one op, and so does each end of a transfer."""
    order = {op: index for index, op in enumerate(ops)}
    for op in ops:
        match op:
            case FragmentOp():
                yield Event(tuple((value, None) for value in op.captured), tuple(map(Definition, op.results)))
            case TransferOp() if stages.of_value(op.operand) == stage:
                yield Event(((op.operand, None),), ())
            case TransferOp():
                yield Event((), (Definition(op.result),))
            case _:
                yield event_of(op, order, stage, stages, decide=True)


def _in_fragment(op: FragmentOp, looped: Container[Operation]) -> Iterator[tuple[Operation, Sequence[int]]]:
    """Yield the reuse of memory by the ops of a fragment, and by the sums of its yielded values."""
    body = [inner for inner in op.body.block.ops if not isinstance(inner, YieldOp | FreeOp)]
    func = op.parent_op()
    assert isinstance(func, FuncOp), "verified"
    stages = Stages(func)
    order = {inner: index for index, inner in enumerate([*body, op])}
    events = [event_of(inner, order, None, stages, decide=True) for inner in body]
    yielded = op.terminator.args
    sums = (first_part_of(op, position, looped, decide=True) for position in range(len(yielded)))
    events.append(Event(tuple((value, None) for value in yielded), tuple(sums)))
    buffers = live_buffers(events, op.captured, ())
    yield from _decided(body, events[:-1], buffers)
    if op.outs:
        yield op, [index if out in buffers.taken_over else -1 for index, out in enumerate(op.outs)]


def _decided(
    ops: Sequence[Operation], events: Iterable[Event], buffers: Buffers
) -> Iterator[tuple[Operation, Sequence[int]]]:
    for op, event in zip(ops, events, strict=True):
        over = {definition.value: definition.over for definition in event.makes if definition.over is not None}
        if over:
            index: dict[Hashable, int] = {value: at for at, value in enumerate(op.operands)}
            yield op, [index[over[value]] if value in buffers.taken_over else -1 for value in results_of(op)]
