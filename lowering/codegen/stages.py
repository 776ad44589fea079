"""
Write programs of several stages as one file; each rank runs the step of its stage.

Every stage has a plan, the functions of its fragments, and a step function that runs the stage's program entry by
entry: the ops before the loop over the parts of the batch, the slots of its schedule, and the ops after the loop. A
value between fragments is a variable per part, deleted after its last use. A sum over parts is accumulated as the parts
are produced. The step sends values to other stages in the order of the program.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import dtype_of, shape_of
from ...dialects.pipe import Action, FragmentOp, TransferOp
from ...dialects.placed import parts_of
from ...dialects.spmd import FreeOp, TokenType
from ...dialects.stage_program import ScheduledOp
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...dialects.train import FORWARD
from ...ir.sharding import Reduction
from ...ir.unit_tasks import Task
from .body import Program
from .bundles import index_of
from .equal_layers import LayerCall
from .equal_ops import ValueUses, read_by
from .errors import EmitError
from .fragments import LISTED, FragmentFunctions, LoopBody, LoopValues, find_layers, how
from .layered_arguments import NamedArguments, layered_arguments
from .layered_entries import shared_forms
from .layout import INDENT, Doc, Group, assignment, call, keyword, lines, literal, tuple_of
from .names import Named, PartOf
from .plan import PlanFacts, ProgramSignature, axes_doc, mesh_doc, plan_doc, spread_text
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
    writers: list[_StepWriter] = []
    try:
        writers += (_StepWriter(stage, program) for stage, program in zip(stages, programs, strict=True))
        find_layers([writer.body for writer in writers])
        steps = [list(writer.lines()) for writer in writers]
    finally:
        for free in (free for writer in writers for free in writer.frees.values()):
            free.erase()
    for stage in stages:
        yield from _mesh(stage)
    transfers = list(_transfers(stages))
    if transfers:
        yield from ("", *lines(tuple_of(transfers, "TRANSFERS = ", fill=False)))
    plans: list[Group] = []
    for stage, program in zip(stages, programs, strict=True):
        signature = ProgramSignature(stage.func, stage.arguments, stage.results)
        more: dict[str, Doc] = {"ranks": literal(stage.ranks)} | ({"transfers": "TRANSFERS"} if transfers else {})
        plans.append(plan_doc(signature, tuple(program.groups), **about, suffix=str(stage.index), more=more))
    forms, plans = shared_forms(plans)
    for doc in (*forms, *plans):
        yield from ("", *lines(doc))
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
    """The variable of the results of a fragment that are summed over parts."""

    name: str
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
        looped = [index for index, entry in enumerate(self.entries) if entry.part is not None]
        self.looped = range(looped[0], looped[-1] + 1) if looped else range(0)
        self.by_part = {value for op in self.loop for value in op.results if self._is_read_by_part(value)}
        self.axis = next((op.axis.data for op in ops if isinstance(op, FragmentOp)), None)
        self.fragments: dict[FragmentOp, _Fragment] = {}
        self.written = frozenset[Operation]()
        self.functions = FragmentFunctions.of(program, ops)
        self.last_read = {value: index for index, entry in enumerate(self.entries) for value in self._reads(entry)}
        self.ends = self._ends()
        uses = ValueUses.of((*ops, self._done), Where(program.mesh))
        self.layered = layered_arguments(self.func, stage.arguments)
        lists = [values for layer in self.layered for values in layer.lists]
        self.frees = {index: FreeOp(values) for index, values in self._outside_ends()}
        self.body = LoopBody(
            program, replace(uses, ops=self._ops()), self.functions, self._loop_values(), lists, frees=True
        )
        self.names = self.body.names

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
            values = self.functions.captured[entry.op] if isinstance(entry.op, FragmentOp) else read_by(entry.op)
            yield from (self._at(value, entry.part) for value in values)
        elif self.stage.sends(entry.op):
            yield self._at(entry.op.operand, entry.part)
        elif entry.action is Action.WAIT and entry.part is not None:
            yield PartOf(entry.op.result, entry.part)

    def _ends(self) -> Mapping[int, list[Named]]:
        """Return, by entry, the values whose last use it is, except arguments and results of the step."""
        lasting = {*self.stage.arguments, *self._returned}
        ends: dict[int, list[Named]] = {}
        for value, index in self.last_read.items():
            if value not in lasting:
                ends.setdefault(index, []).append(value)
        return ends

    def _outside_ends(self) -> Iterator[tuple[int, list[SSAValue]]]:
        """Yield entries outside of the loop with the values whose last use they are; a wait deletes its token."""
        for index in self.ends.keys() - {*self.looped}:
            values = (value for value in self.ends[index] if isinstance(value, SSAValue))
            if freed := [value for value in values if not isinstance(value.type, TokenType)]:
                yield index, freed

    def _ops(self) -> list[Operation]:
        """Return the ops of the step with frees; the ops of the loop are in the order of the block."""
        ops: dict[Operation, None] = {}
        for index, entry in enumerate(self.entries):
            ops |= dict.fromkeys(op for op in self.stage.program.ops if op in self.loop) if index in self.looped else {}
            ops[entry.op] = None
            ops |= {self.frees[index]: None} if index in self.frees else {}
        return [*ops, self._done]

    def _loop_values(self) -> LoopValues:
        captured = self.functions.captured.values()
        ends: dict[SSAValue, Hashable] = {
            value: None for values in captured for value in values if value not in self.by_part
        }
        for index in self.looped:
            ends |= {value: index for value in self.ends.get(index, ()) if isinstance(value, SSAValue)}
        for op in self.functions.captured:
            parts = [entry.part for entry in self.entries if entry.op is op and entry.part is not None]
            for value in self.by_part.intersection(op.outs):
                ends[value] = tuple(self.last_read.get(PartOf(value, part)) for part in parts)
        return LoopValues(
            ends, {op: [out for out in op.outs if self._is_read_whole(out)] for op in self.functions.captured}
        )

    def lines(self) -> Iterator[str]:
        """Write the text of the function."""
        layered = self.layered if self.body.layers.functions else ()
        arguments = NamedArguments(self.func, self.stage.arguments, self.names, layered)
        text = [line for item in self.body.layers.items[:-1] for line in self._item(item)]
        text += self.program.tick()
        yield from self.body.head(f"step{self.stage.index}", arguments.parameters)
        yield from arguments.head()
        yield from text
        yield ""
        yield from self.body.returned(arguments.returned(self.names, self._returned))

    def _item(self, item: Operation | LayerCall) -> Iterator[str]:
        """Write an op or a call, and in the place of the first op of the loop all entries of the loop."""
        if item in self.loop:
            if item not in self.written:
                self.written = self.loop
                yield from self._loop()
        elif isinstance(item, TransferOp):
            for entry in self.entries:
                if entry.op is item:
                    yield from self.program.tick()
                    yield from self._transfer(item, entry)
        else:
            yield from self.body.statements([item])

    def _loop(self) -> Iterator[str]:
        bundles = [bundle for bundle in self.functions.bundles if bundle.source is None]
        yield from self.body.bundle(bundles)
        last_runs = {entry.op: index for index, entry in enumerate(self.entries)}
        for index in self.looped:
            entry = self.entries[index]
            yield from self.program.tick()
            if index == self.looped[0]:
                yield from ("", f"{INDENT}# The parts of the batch, as the schedule has them.")
            if isinstance(entry.op, TransferOp):
                yield from self._transfer(entry.op, entry)
            elif isinstance(entry.op, FragmentOp):
                assert entry.part is not None, "checked in `stages_of`"
                yield from self._run(entry.op, entry.part)
            yield from self.body.free(self.ends.get(index, ()))
            ended = [bundle for bundle in bundles if max(last_runs[op] for op in bundle.readers) == index]
            yield from self.body.end_of_bundles(ended)
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
        arguments = self.body.arguments(op, lambda value: self._at(value, part))
        results = call(fragment.function, ["comm", literal(part), *arguments])
        targets = [self._kept(op, index, part) for index in fragment.kept]
        for bundle in self.functions.yielded(op):
            values = [PartOf(value, part) for value in bundle.values]
            targets.append(self.names.new_list(values, f"{bundle.label}.{part}", op.label.data))
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
            fragments = self.functions
            bundled = {value for bundle in fragments.yielded(op) for value in bundle.values}
            kept = [index for index, out in enumerate(op.outs) if out in self.by_part - bundled]
            summed = [index_of(out) for out in self.body.loop.summed[op]]
            # A value that only the loop reads may be equal for all parts (statistics of a batch-norm in eval mode).
            kinds = [how(op, sharding_of(op.terminator.args[index])) for index in summed]
            if LISTED in kinds:
                stray = op.outs[summed[kinds.index(LISTED)]]
                raise EmitError(op, f"yields parts of %{stray.name_hint}, which an op outside of the loop reads")
            function = fragments.write(op, kept, summed)
            sums = _Sums(self.names.beside(f"{function}_sums")) if summed else None
            self.fragments[op] = _Fragment(function, kept, kinds, sums)
        return self.fragments[op]

    def _kept(self, op: FragmentOp, index: int, part: int) -> str:
        value = PartOf(op.outs[index], part)
        return self.names.new(value) if value in self.last_read else _UNUSED

    def _sums(self) -> Iterator[str]:
        """Assign the sums over all parts to the names of the results."""
        for op, fragment in self.fragments.items():
            if fragment.sums is not None:
                yield from self.body.totals(op, fragment.sums.name, self.body.loop.summed[op])
