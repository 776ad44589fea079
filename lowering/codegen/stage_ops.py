"""
A step of several stages, seen from each: which of its ops a stage runs, in which order, and how often.

A stage runs what comes *before* the loop over the parts of the batch, its schedule, and what comes *after*. Every
stage does, so what is needed before the loop is made before any loop: a stage waits in no circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import SCHEDULE, FragmentOp, Slot, SlotAttr, TransferOp
from ...dialects.spmd import FreeOp
from ...dialects.staged import Stages
from ...ir.mesh import Mesh
from .errors import EmitError


@dataclass(frozen=True)
class StageOps:
    """
    One stage of a step.

    Args:
        index: its number.
        mesh: its own.
        ranks: of the job, in the order of the mesh's own.
        before, after: the ops around the loop, in program order; transfers that it sends or receives are among them.
        slots: what it does in the loop, in order; none where the step has no loop.
        loop: the fragments and transfers that `slots` speaks of, in program order.
    """

    func: FuncOp
    index: int
    mesh: Mesh
    ranks: tuple[int, ...]
    before: tuple[Operation, ...]
    slots: tuple[Slot, ...]
    loop: tuple[FragmentOp | TransferOp, ...]
    after: tuple[Operation, ...]

    @property
    def arguments(self) -> Sequence[BlockArgument]:
        """The arguments of the step that this stage has."""
        stages = Stages(self.func)
        return [value for value in self.func.body.block.args if stages.of_value(value) == self.index]

    @property
    def results(self) -> Sequence[int]:
        """The indices of the results of the step that this stage makes."""
        stages, done = Stages(self.func), self.func.body.block.last_op
        assert isinstance(done, ReturnOp)
        return [i for i, value in enumerate(done.arguments) if stages.of_value(value) == self.index]

    @cached_property
    def labelled(self) -> Mapping[str, FragmentOp | TransferOp]:
        """The fragments and transfers of the loop by their labels."""
        return {op.label.data: op for op in self.loop}

    def sends(self, op: TransferOp) -> bool:
        """Whether this stage is the source of a transfer that it takes part in."""
        return Stages(self.func).of_value(op.operand) == self.index


def stages_of(module: ModuleOp, func: FuncOp) -> list[StageOps]:
    """
    The stages of a lowered step.

    Raises:
        EmitError: the module lacks a stage's mesh, or a part of the batch is worked on outside of the schedule.
    """
    stages, block = Stages(func), func.body.block
    meshes = {op.sym_name.data: op for op in module.ops if isinstance(op, MeshOp)}
    schedule = _schedule(func, len(stages.names))
    labels = {slot.label for slots in schedule for slot in slots}
    looped = {op for op in block.ops if isinstance(op, FragmentOp | TransferOp) and op.label.data in labels}
    late = _after(block.ops, looped)
    found: list[StageOps] = []
    for index, name in enumerate(stages.names):
        mine = [op for op in block.ops if index in _stages_of(op, stages) and not isinstance(op, FreeOp | ReturnOp)]
        loop = tuple(op for op in mine if isinstance(op, FragmentOp | TransferOp) and op in looped)
        around = [op for op in mine if op not in looped]
        before, after = ([op for op in around if (op in late) is is_late] for is_late in (False, True))
        if stray := next((op for op in around if isinstance(op, FragmentOp)), None):
            raise EmitError(stray, "is in no schedule; run schedule-pipeline")
        mesh = meshes[name]
        slots = tuple(schedule[index]) if schedule else ()
        found.append(StageOps(func, index, mesh.mesh, mesh.ranks, tuple(before), slots, loop, tuple(after)))
    return found


def _schedule(func: FuncOp, count: int) -> Sequence[Sequence[Slot]]:
    given = func.attributes.get(SCHEDULE)
    if not isinstance(given, ArrayAttr):
        return ()
    lists = cast("ArrayAttr[ArrayAttr[SlotAttr]]", given).data
    if len(lists) != count:
        raise EmitError(func, f"has a schedule of {len(lists)} stages, expected {count}")
    return [[slot.data for slot in listed] for listed in lists]


def _stages_of(op: Operation, stages: Stages) -> Iterator[int | None]:
    if isinstance(op, TransferOp):
        yield from (stages.of_value(op.operand), stages.of_value(op.result))
    else:
        yield stages.of_op(op)


def _after(ops: Iterable[Operation], looped: set[FragmentOp | TransferOp]) -> set[Operation]:
    """The ops outside of the loop that need something of it."""
    late, made = set[Operation](), set[SSAValue]()
    for op in ops:
        if op in looped:
            made.update(op.results)
        elif any(value in made for value in op.operands):
            late.add(op)
            made.update(op.results)
    return late
