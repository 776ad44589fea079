"""
Write programs of several stages as one file; each rank runs the step of its stage.

Every stage has a plan, the functions of its fragments, and a step function that runs the stage's program entry by
entry: the ops before the loop over the parts of the batch, the slots of its schedule, and the ops after the loop. A
value between fragments is a variable per part, deleted after its last use. A sum over parts is accumulated as the parts
are produced. The step sends values to other stages in the order of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import dtype_of, shape_of
from ...dialects.pipe import Action, FragmentOp, TransferOp
from ...dialects.placed import parts_of
from ...dialects.spmd import FreeOp
from ...dialects.stage_program import ScheduledOp
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...dialects.train import FORWARD
from ...ir.sharding import Reduction
from ...ir.unit_tasks import Task
from .body import LISTED, Body, Program, fragment_function, how, read_by
from .errors import EmitError
from .layout import INDENT, Doc, Group, assignment, call, keyword, lines, literal, tuple_of
from .names import Named, PartOf
from .overwritten import overwritten_operands
from .plan import PlanFacts, ProgramSignature, argument_name, axes_doc, mesh_doc, plan_doc, spread_text
from .roles import roles_of_arguments
from .sizes import Table
from .stage_ops import StageOps
from .where import Where

_UNUSED = "_"


def staged(stages: Sequence[StageOps], about: PlanFacts, ticks: dict[Operation, int] | None = None) -> Iterator[str]:
    """
    Write the text of a program of several stages after the imports.

    Args:
        about: entries that all plans share.
        ticks: numbers of the ops, as in `emit_python`.
    """
    table, functions = Table(), dict[str, list[str]]()
    programs = [Program(stage.mesh, table, functions=functions, ticks=ticks) for stage in stages]
    steps = [list(_StepWriter(stage, program).lines()) for stage, program in zip(stages, programs, strict=True)]
    for stage in stages:
        yield from _mesh(stage)
    transfers = list(_transfers(stages))
    if transfers:
        yield from ("", *lines(tuple_of(transfers, "TRANSFERS = ", fill=False)))
    for stage, program in zip(stages, programs, strict=True):
        signature = ProgramSignature(stage.func, stage.arguments, stage.results)
        more: dict[str, Doc] = {"ranks": literal(stage.ranks)} | ({"transfers": "TRANSFERS"} if transfers else {})
        yield ""
        yield from lines(plan_doc(signature, tuple(program.groups), **about, suffix=str(stage.index), more=more))
    if table:
        yield from ("", "# What differs between the ranks of a stage: an entry per rank.", *lines(table.table()))
    for function in (*functions.values(), *steps):
        yield from ("", "", *function)
    listed = (f"rt.Stage(PLAN{stage.index}, step{stage.index})" for stage in stages)
    yield from ("", "", *lines(tuple_of(listed, "STAGES = ")))
    if FORWARD not in stages[0].func.attributes:
        yield from ("", 'if __name__ == "__main__":', f"{INDENT}rt.launch(STAGES)")


def _mesh(stage: StageOps) -> Iterator[str]:
    yield from lines(mesh_doc(stage.mesh, f"MESH{stage.index}"))
    if times := [axis for axis in stage.mesh.axes if axis not in stage.mesh.spatial]:
        yield from lines(axes_doc(f"TIMED{stage.index} = MESH{stage.index}.over", times))


def _transfers(stages: Sequence[StageOps]) -> Iterator[Doc]:
    func = stages[0].func
    stage_map, by_value = Stages(func), {stage.index: stage for stage in stages}

    def holders(op: TransferOp, value: SSAValue) -> Doc:
        if (number := stage_map.of_value(value)) is None:
            raise EmitError(op, f"is from or to @{op.mesh.data}, which is not a stage of the function")
        stage, sharding = by_value[number], sharding_of(value)
        mesh = f"MESH{number}" if stage.mesh.axes == stage.mesh.spatial else f"TIMED{number}"
        text = [] if sharding.is_replicated else [literal(spread_text(func, sharding))]
        return call("rt.Holders", [mesh, literal(stage.ranks), *text])

    for op in func.body.block.ops:
        if not isinstance(op, TransferOp):
            continue
        if (tasks := op.tasks_in_turn) is None:
            raise EmitError(op, "has no unit tasks yet; run plan-transfers")
        entries: dict[str, Doc] = {
            "label": literal(op.label.data),
            "shape": literal(shape_of(op.operand)),
            "dtype": literal(dtype_of(op.operand)),
            "source": holders(op, op.operand),
            "target": holders(op, op.result),
            "tasks": tuple_of(map(_task, tasks), fill=True),
        }
        yield call("rt.Transfer", map(keyword, entries, entries.values()))


def _task(task: Task) -> Doc:
    return call("rt.Task", map(literal, (task.part, task.slice, task.sender, task.receivers)))


@dataclass
class _Sums:
    """The results of a fragment that are summed over parts: the variable of the sums, and the results' indices."""

    name: str
    indices: list[int]
    begun: bool = False


@dataclass
class _Fragment:
    """The call of a fragment: its function, the results whose parts are all kept, the kinds of sums, and the sums."""

    function: str
    kept: list[int]
    kinds: list[str]
    sums: _Sums | None


class _StepWriter:
    """A writer of the step function of one stage."""

    def __init__(self, stage: StageOps, program: Program) -> None:
        self.stage, self.program = stage, program
        self.func = stage.func
        ops, self.entries, self.loop = stage.program.ops, stage.program.entries, stage.program.loop
        self.body = Body(program, Where(program.mesh), (*ops, self._done), overwritten_operands(ops), frees=True)
        self.names = self.body.names
        looped = [index for index, entry in enumerate(self.entries) if entry.part is not None]
        self.first, self.last = (looped[0], looped[-1]) if looped else (None, None)
        self.by_part = {value for op in self.loop for value in op.results if self._is_read_by_part(value)}
        self.axis = next((op.axis.data for op in ops if isinstance(op, FragmentOp)), None)
        self.fragments: dict[FragmentOp, _Fragment] = {}
        self.ends = self._ends()

    @cached_property
    def _done(self) -> ReturnOp:
        done = self.func.body.block.last_op
        assert isinstance(done, ReturnOp)
        return done

    @cached_property
    def _returned(self) -> list[SSAValue]:
        return [self._done.operands[index] for index in self.stage.results]

    def _is_read_by_part(self, value: SSAValue) -> bool:
        """Return whether every part of a value needs a variable: the stage receives it, or the loop reads it."""
        return isinstance(value.owner, TransferOp) or any(self._is_looped(use.operation) for use in value.uses)

    def _is_looped(self, op: Operation) -> bool:
        """Return whether an op is in the loop or in a fragment of the loop."""
        parent = op.parent_op()
        return op in self.loop or parent in self.loop

    def _is_read_whole(self, value: SSAValue) -> bool:
        """Return whether an op after the loop reads a value."""
        users = (use.operation for use in value.uses)
        return any(not self._is_looped(user) and not isinstance(user, FreeOp) for user in users)

    def _at(self, value: SSAValue, part: int | None) -> Named:
        return PartOf(value, part) if part is not None and value in self.by_part else value

    def _reads(self, entry: ScheduledOp) -> Iterator[Named]:
        if not isinstance(entry.op, TransferOp):
            yield from (self._at(value, entry.part) for value in read_by(entry.op))
        elif self.stage.sends(entry.op):
            yield self._at(entry.op.operand, entry.part)
        elif entry.action is Action.WAIT and entry.part is not None:
            yield PartOf(entry.op.result, entry.part)

    def _ends(self) -> Mapping[int, list[Named]]:
        """Return, by entry, the values whose last use it is, except arguments and results of the step."""
        lasting = {*self.stage.arguments, *self._returned}
        last: dict[Named, int] = {}
        for index, entry in enumerate(self.entries):
            last |= dict.fromkeys(self._reads(entry), index)
        ends: dict[int, list[Named]] = {}
        for value, index in last.items():
            if value not in lasting:
                ends.setdefault(index, []).append(value)
        self.read = set(last)
        return ends

    def lines(self) -> Iterator[str]:
        """Write the text of the function."""
        roles = roles_of_arguments(self.func)
        names = [self.names.new(argument, argument_name(roles[argument.index])) for argument in self.stage.arguments]
        text = [line for index in range(len(self.entries)) for line in self._entry(index)]
        text += self.program.tick()
        yield from self.body.head(f"step{self.stage.index}", names)
        yield from text
        yield ""
        yield from self.body.returned([self.names[value] for value in self._returned])

    def _entry(self, index: int) -> Iterator[str]:
        entry, op = self.entries[index], self.entries[index].op
        if isinstance(op, TransferOp | FragmentOp):
            yield from self.program.tick()
        if index == self.first:
            yield from ("", f"{INDENT}# The parts of the batch, as the schedule has them.")
        if isinstance(op, TransferOp):
            yield from self._transfer(op, entry)
        elif isinstance(op, FragmentOp):
            assert entry.part is not None, "checked in `stages_of`"
            yield from self._run(op, entry.part)
        else:
            yield from self.body.statement(op)
        yield from self.body.free(self.ends.get(index, ()))
        if index == self.last:
            yield from self._sums()

    def _transfer(self, op: TransferOp, entry: ScheduledOp) -> Iterator[str]:
        """Write one side of a transfer; outside of the loop, a received value is awaited at once."""
        if entry.part is None and entry.action is Action.START:
            yield from self.body.comment(op)
        if self.stage.sends(op):
            yield from self._send(op, self.names[self._at(op.operand, entry.part)], entry.part)
        elif entry.part is None:
            if entry.action is Action.WAIT:
                arrived = call("comm.arrived", [self._receive(op, None)])
                yield from assignment([self.names.new(op.result)], arrived, INDENT)
        elif entry.action is Action.START:
            name = self.names.new(PartOf(op.result, entry.part))
            yield from assignment([name], self._receive(op, entry.part), INDENT)
        else:
            name = self.names[PartOf(op.result, entry.part)]
            yield from assignment([name], call("comm.arrived", [name]), INDENT)

    def _send(self, op: TransferOp, name: str, part: int | None) -> Iterator[str]:
        number = self._number(op, op.operand, part)
        yield from lines(call("comm.send", [literal(op.label.data), literal(number), name]), INDENT)

    def _receive(self, op: TransferOp, part: int | None) -> Group:
        return call("comm.receive", [literal(op.label.data), literal(self._number(op, op.result, part))])

    def _number(self, op: TransferOp, value: SSAValue, part: int | None) -> int:
        """Return the number of the value's part, counted over all temporal axes."""
        places = dict(parts_of(op))
        if part is not None and self.axis is not None:
            places[self.axis] = part
        sharding, number = sharding_of(value), 0
        for axis in self.program.mesh.axes:
            if axis not in self.program.mesh.spatial:
                is_varying = axis.name in (*sharding.split_axes, *sharding.partial_axes)
                number = number * axis.size + (places.get(axis.name, 0) if is_varying else 0)
        return number

    def _run(self, op: FragmentOp, part: int) -> Iterator[str]:
        fragment = self._fragment(op)
        arguments = [self.names[self._at(value, part)] for value in op.captured]
        results = call(fragment.function, ["comm", literal(part), *arguments])
        targets = [self._kept(op, index, part) for index in fragment.kept]
        sums = fragment.sums
        if sums is None:
            yield from assignment(targets, results, INDENT, unpacked=True)
            return
        parts: Doc = results
        if targets:
            yield from assignment([*targets, "*parts"], results, INDENT)
            parts = "parts"
        options = [] if set(fragment.kinds) <= {Reduction.SUM.value} else [keyword("how", literal(fragment.kinds))]
        total = sums.name if sums.begun else "[]"
        yield from assignment([sums.name], call("rt.accumulate", [total, parts, *options]), INDENT)
        if targets:
            yield f"{INDENT}del parts"
        sums.begun = True

    def _fragment(self, op: FragmentOp) -> _Fragment:
        """Return the function of a fragment; the first call writes it."""
        if op not in self.fragments:
            kept = [index for index, out in enumerate(op.outs) if out in self.by_part]
            summed = [index for index, out in enumerate(op.outs) if self._is_read_whole(out)]
            # A value that only the loop reads may be equal for all parts (statistics of a batch-norm in eval mode).
            kinds = [how(op, sharding_of(op.terminator.args[index])) for index in summed]
            if LISTED in kinds:
                stray = op.outs[summed[kinds.index(LISTED)]]
                raise EmitError(op, f"yields parts of %{stray.name_hint}, which an op outside of the loop reads")
            order = [*((index, False) for index in kept), *((index, True) for index in summed)]
            function = fragment_function(self.program, op, order)
            sums = _Sums(self.names.beside(f"{function}_sums"), summed) if summed else None
            self.fragments[op] = _Fragment(function, kept, kinds, sums)
        return self.fragments[op]

    def _kept(self, op: FragmentOp, index: int, part: int) -> str:
        value = PartOf(op.outs[index], part)
        return self.names.new(value) if value in self.read else _UNUSED

    def _sums(self) -> Iterator[str]:
        """Assign the sums over all parts to the names of the results."""
        for op, fragment in self.fragments.items():
            if fragment.sums is not None:
                targets = [self._summed(op.outs[index]) for index in fragment.sums.indices]
                yield from assignment(targets, Group(fragment.sums.name, (), ""), INDENT, unpacked=True)
                yield f"{INDENT}del {fragment.sums.name}"

    def _summed(self, value: SSAValue) -> str:
        return self.names.new(value) if value in self.read or value in self._returned else _UNUSED
