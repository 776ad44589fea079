"""Check that the stages of a step, each running its program entry by entry, do not deadlock."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects.pipe import Action, TransferOp, values_read
from ...dialects.stage_program import ScheduledOp, StageProgram, stage_programs
from ...dialects.staged import Stages
from .errors import InterpreterError


def check_stage_order(func: FuncOp) -> None:
    """
    Run the programs of all stages side by side, without numbers.

    Raises:
        InterpreterError: a stage reads a value before it is computed, or waits for a value that is never sent.
    """
    _StageOrder(func).run()


class _StageOrder:
    """The values computed and sent so far; an instance runs once."""

    def __init__(self, func: FuncOp) -> None:
        self.programs, self.stages = stage_programs(func), Stages(func)
        self.done: dict[int | None, set[tuple[SSAValue, int | None]]] = {each.stage: set() for each in self.programs}
        for value in func.body.block.args:
            self.done.setdefault(self.stages.of_value(value), set()).add((value, None))
        self.sent: set[tuple[Operation, int | None]] = set()

    def run(self) -> None:
        pending = {each.stage: iter(each.entries) for each in self.programs}
        waiting: dict[int | None, ScheduledOp] = {}
        while pending:
            before = len(self.sent), len(pending)
            for program in self.programs:
                if program.stage in pending and not self._proceed(program, pending[program.stage], waiting):
                    del pending[program.stage]
            if before == (len(self.sent), len(pending)):
                stage, entry = next(iter(waiting.items()))
                awaited = "it" if entry.part is None else f"part {entry.part}"
                raise InterpreterError(entry.op, f"deadlock: stage {stage} waits for {awaited}, which is never sent")

    def _proceed(
        self, program: StageProgram, entries: Iterator[ScheduledOp], waiting: dict[int | None, ScheduledOp]
    ) -> bool:
        """Run a stage until it waits for another stage, and return whether entries are left."""
        entry = waiting.pop(program.stage, None) or next(entries, None)
        while entry is not None:
            if entry.action is Action.WAIT and (entry.op, entry.part) not in self.sent:
                waiting[program.stage] = entry
                return True
            self._run(program, entry)
            entry = next(entries, None)
        return False

    def _run(self, program: StageProgram, entry: ScheduledOp) -> None:
        op, done = entry.op, self.done[program.stage]
        sends = isinstance(op, TransferOp) and self.stages.of_value(op.operand) == program.stage
        for value in values_read(op) if sends or not isinstance(op, TransferOp) else ():
            if {(value, None), (value, entry.part)} & done:
                continue
            # A reader outside of the loop takes the sum of a value once all its parts are computed.
            parts = {each.part for each in program.entries if each.op is value.owner}
            if not parts or entry.part is not None or not {(value, part) for part in parts} <= done:
                raise InterpreterError(op, f"stage {program.stage} reads %{value.name_hint} before it is computed")
        if sends:
            self.sent.add((op, entry.part))
        elif not isinstance(op, TransferOp) or entry.action is Action.WAIT:
            done.update((value, entry.part) for value in op.results)
