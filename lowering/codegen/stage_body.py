"""
Write the step function of one stage of a pipeline, which runs the stage's program entry by entry.

These are the ops before the loop over the parts of the batch, the slots of its schedule, and the ops after the loop. A
value between fragments is a variable per part, deleted after its last use. A sum over parts is accumulated as the parts
are produced. The step sends values to other stages in the order of the program.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from ...dialects.pipe import Action, FragmentOp, TransferOp
from ...dialects.placed import parts_of
from ...dialects.spmd import FreeOp, TokenType
from ...dialects.stage_program import ScheduledOp
from ...dialects.step import sharding_of
from .body import Program
from .bundles import index_of
from .equal_layers import ValueUses, read_by
from .errors import EmitError
from .fragments import LISTED, FragmentBody, StepBody
from .layout import INDENT, SUMS, assignment, call, lines, literal
from .names import UNUSED, Named, PartOf
from .stages import LoweredStage
from .where import Where


class LastUses:
    """
    The last uses of the values of a stage, by the entries of its program.

    Attributes:
        looped: indices of the entries of the loop.
        by_part: values with a variable per part: the stage receives them, or the loop reads them.
        last_read: value -> index of the last entry that reads it.
        ends: index of an entry -> values whose last use it is, except arguments and results of the step.
    """

    def __init__(self, stage: LoweredStage, fragments: Sequence[FragmentBody]) -> None:
        self.stage, self.entries, self.loop = stage, stage.program.entries, stage.program.loop
        self.captured = {each.op: each.captured for each in fragments}
        looped = [index for index, entry in enumerate(self.entries) if entry.part is not None]
        self.looped = range(looped[0], looped[-1] + 1) if looped else range(0)
        results = (value for op in self.loop for value in op.results)
        self.by_part = {
            value
            for value in results
            if isinstance(value.owner, TransferOp) or any(self._is_looped(use.operation) for use in value.uses)
        }
        self.last_read = {value: index for index, entry in enumerate(self.entries) for value in self._reads(entry)}
        lasting = {*stage.arguments, *stage.returned}
        self.ends: dict[int, list[Named]] = {}
        for value, index in self.last_read.items():
            if value not in lasting:
                self.ends.setdefault(index, []).append(value)

    def _is_looped(self, op: Operation) -> bool:
        """Return whether an op is in the loop or in a fragment of the loop."""
        return op in self.loop or op.parent_op() in self.loop

    def is_read_whole(self, value: SSAValue) -> bool:
        """Return whether an op after the loop reads a value."""
        users = (use.operation for use in value.uses)
        return any(not self._is_looped(user) and not isinstance(user, FreeOp) for user in users)

    def at(self, value: SSAValue, part: int | None) -> Named:
        """Return the part of a value that an entry for `part` reads."""
        return PartOf(value, part) if part is not None and value in self.by_part else value

    def _reads(self, entry: ScheduledOp) -> Iterator[Named]:
        if not isinstance(entry.op, TransferOp):
            values = self.captured[entry.op] if isinstance(entry.op, FragmentOp) else read_by(entry.op)
            yield from (self.at(value, entry.part) for value in values)
        elif self.stage.has(entry.op.operand):
            yield self.at(entry.op.operand, entry.part)
        elif entry.action is Action.WAIT and entry.part is not None:
            yield PartOf(entry.op.result, entry.part)

    def ops(self) -> Iterator[Operation]:
        """Yield the ops of the step, with the ops of the loop in the order of the block and new frees outside of it."""
        for index, entry in enumerate(self.entries):
            if index in self.looped:
                yield from (op for op in self.stage.program.ops if op in self.loop and index == self.looped.start)
                continue
            if entry.action is not Action.WAIT:
                yield entry.op
            # A wait deletes its token.
            ended = (value for value in self.ends.get(index, ()) if isinstance(value, SSAValue))
            if freed := [value for value in ended if not isinstance(value.type, TokenType)]:
                yield FreeOp(freed)
        yield self.stage.done

    def ends_of_bundles(self) -> dict[SSAValue, Hashable]:
        """Return `Bundle.end` of the values that may be in a bundle."""
        captured = (value for values in self.captured.values() for value in values)
        ends: dict[SSAValue, Hashable] = {value: None for value in captured if value not in self.by_part}
        for index in self.looped:
            ends |= {value: index for value in self.ends.get(index, ()) if isinstance(value, SSAValue)}
        for op in self.captured:
            parts = [entry.part for entry in self.entries if entry.op is op and entry.part is not None]
            for value in self.by_part.intersection(op.outs):
                ends[value] = tuple(self.last_read.get(PartOf(value, part)) for part in parts)
        return ends


class StageBody(StepBody):
    """A writer of the step function of one stage of a pipeline."""

    def __init__(self, program: Program, stage: LoweredStage, fragments: Sequence[FragmentBody]) -> None:
        self.last_uses = LastUses(stage, fragments)
        ops = list(self.last_uses.ops())
        program.added_frees += (op for op in ops if isinstance(op, FreeOp))
        super().__init__(program, stage, replace(ValueUses.of(ops, Where(program.mesh)), frees=True), fragments)
        self.axis = next((op.axis.data for op in self.fragments), None)
        self.is_loop_written = False
        self.sums: dict[FragmentBody, str] = {}

    def _set_results(self) -> None:
        for op, fragment in self.fragments.items():
            summed = [index for index, out in enumerate(op.outs) if self.last_uses.is_read_whole(out)]
            # A value that only the loop reads may be equal for all parts (statistics of a batch-norm in eval mode).
            if (stray := next((index for index in summed if fragment.how(index) == LISTED), None)) is not None:
                name = op.outs[stray].name_hint
                raise EmitError(op, f"yields parts of %{name}, which an op outside of the loop reads")
            fragment.set_results([index for index, out in enumerate(op.outs) if out in self.last_uses.by_part], summed)
            self.caller.summed[op] = [op.outs[index] for index in fragment.summed]

    def _ends(self) -> dict[SSAValue, Hashable]:
        return self.last_uses.ends_of_bundles()

    def statement(self, op: Operation) -> Iterator[str]:
        """Write the lines of one op; in the place of the first op of the loop, write all entries of the loop."""
        if op in self.last_uses.loop:
            if not self.is_loop_written:
                self.is_loop_written = True
                yield from self._entries()
        elif isinstance(op, TransferOp):
            for entry in self.last_uses.entries:
                if entry.op is op:
                    yield from self.program.tick()
                    yield from self._transfer(op, entry)
        else:
            yield from super().statement(op)

    def _entries(self) -> Iterator[str]:
        """Write the entries of the loop in the order of the schedule."""
        bundles = [bundle for bundle in self.bundles if bundle.source is None]
        yield from self.bundle(bundles)
        last_runs = {entry.op: index for index, entry in enumerate(self.last_uses.entries)}
        for index in self.last_uses.looped:
            entry = self.last_uses.entries[index]
            yield from self.program.tick()
            if index == self.last_uses.looped.start:
                yield from ("", f"{INDENT}# The parts of the batch, as the schedule has them.")
            if isinstance(entry.op, TransferOp):
                yield from self._transfer(entry.op, entry)
            elif isinstance(entry.op, FragmentOp):
                assert entry.part is not None, "checked in `stages_of`"
                yield from self._run(self.fragments[entry.op], entry.part)
            yield from self.free(self.last_uses.ends.get(index, ()))
            ended = [bundle for bundle in bundles if max(last_runs[op] for op in bundle.readers) == index]
            yield from self.end_of_bundles(ended)
        for fragment, name in self.sums.items():
            yield from self.totals(fragment.op, name)

    def _transfer(self, op: TransferOp, entry: ScheduledOp) -> Iterator[str]:
        """Write one side of a transfer; outside of the loop, a received value is awaited at once."""
        part = entry.part
        if part is None and entry.action is Action.START:
            yield from self.comment(op)
        label = literal(op.label.data)
        if self.stage.has(op.operand):
            sent = [label, literal(self._number(op, op.operand, part)), self.names[self.last_uses.at(op.operand, part)]]
            yield from lines(call("comm.send", sent), INDENT)
            return
        received = call("comm.receive", [label, literal(self._number(op, op.result, part))])
        if part is None:
            if entry.action is Action.WAIT:
                yield from assignment([self.names.new(op.result)], call("comm.arrived", [received]), INDENT)
        elif entry.action is Action.START:
            yield from assignment([self.names.new(PartOf(op.result, part))], received, INDENT)
        else:
            name = self.names[PartOf(op.result, part)]
            yield from assignment([name], call("comm.arrived", [name]), INDENT)

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

    def _run(self, fragment: FragmentBody, part: int) -> Iterator[str]:
        """Write the call of a fragment for one part, and add its results to the sums of earlier parts."""
        if not fragment.name:
            bundled = {index_of(value) for bundle in fragment.yielded for value in bundle.values}
            fragment.kept = [index for index in fragment.kept if index not in bundled]
            fragment.write()
            if fragment.summed:
                self.sums[fragment] = self.names.beside(f"{fragment.name}_{SUMS}")
                yield f"{INDENT}{self.sums[fragment]} = rt.Sums()"
        arguments = self.passed(fragment, self.sums.get(fragment, ""), lambda value: self.last_uses.at(value, part))
        results = call(fragment.name, ["comm", literal(part), *arguments])
        kept = [PartOf(fragment.op.outs[index], part) for index in fragment.kept]
        targets = [self.names.new(value) if value in self.last_uses.last_read else UNUSED for value in kept]
        for bundle in fragment.yielded:
            values = [PartOf(value, part) for value in bundle.values]
            targets.append(self.names.new_list(values, f"{bundle.label}.{part}", fragment.op.label.data))
        if targets:
            yield from assignment(targets, results, INDENT, unpacked=True)
        else:
            yield from lines(results, INDENT)
