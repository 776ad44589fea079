"""Verify that the fragments, transfers and schedule of a step fit together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ..ir.mesh import AxisKind, Mesh
from .mesh_ops import MeshOp, meshes_of
from .pipe import SCHEDULE, Action, FragmentOp, Slot, TransferOp, values_read
from .stage_program import StageProgram, schedule_of, stage_programs
from .staged import Stages


def verify_schedule(func: FuncOp) -> None:
    """
    Raise VerifyException unless labels are unique, every fragment is over a temporal axis of its mesh, tasks connect
    ranks of their stages, and a schedule, where there is one, lists every fragment and transfer of each stage once per
    part, after the slots that it depends on.
    """
    inner = [op for op in func.walk() if isinstance(op, FragmentOp | TransferOp)]
    if not inner and SCHEDULE not in func.attributes:
        return
    if stray := next((op for op in inner if op.parent_op() is not func), None):
        raise VerifyException(f"'{stray.name}' {stray.label} is nested in another op, expected it in the function")
    for kind in (FragmentOp, TransferOp):
        labels = Counter(op.label.data for op in inner if type(op) is kind)
        if repeated := next((label for label, count in labels.items() if count > 1), None):
            raise VerifyException(f"{labels[repeated]} '{kind.name}' ops have the label \"{repeated}\", expected one")
    stages, meshes = Stages(func), meshes_of(func)
    for op in inner:
        if isinstance(op, FragmentOp):
            _verify_axis(op, stages, meshes)
        else:
            _verify_tasks(op, stages, meshes)
    if SCHEDULE in func.attributes:
        _Loop(func, stages, meshes).verify()


def _verify_axis(op: FragmentOp, stages: Stages, meshes: Sequence[MeshOp]) -> None:
    name = op.axis.data
    mesh = _mesh_of(op, stages, meshes)
    times = {axis.name for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL} if mesh is not None else ()
    if name not in times:
        on = f"mesh {mesh}" if mesh is not None else "a module without a mesh"
        raise VerifyException(f"'pipe.fragment' {op.label} is over \"{name}\", expected an axis of time of {on}")


def _mesh_of(op: FragmentOp, stages: Stages, meshes: Sequence[MeshOp]) -> Mesh | None:
    """Return the mesh of a fragment's stage, or the module's first mesh where there are no stages."""
    number = stages.of_op(op)
    if stages.names and number is not None and number < len(stages.names):
        return next((mesh_op.mesh for mesh_op in meshes if mesh_op.sym_name.data == stages.names[number]), None)
    return meshes[0].mesh if meshes else None


def _verify_tasks(op: TransferOp, stages: Stages, meshes: Sequence[MeshOp]) -> None:
    if op.tasks is None:
        return
    by_name = {mesh_op.sym_name.data: mesh_op for mesh_op in meshes}
    source, target = stages.mesh_of(op.operand), by_name[op.mesh.data]
    senders = set(by_name[source].ranks) if source in by_name else set[int]()
    receivers = set(target.ranks)
    parts = math.prod(axis.size for axis in target.mesh.axes if axis.kind is AxisKind.TEMPORAL)
    for entry in op.tasks:
        task = entry.data
        if task.sender not in senders:
            raise VerifyException(f"'pipe.transfer' {op.label}: rank {task.sender} sends, expected one of @{source}")
        other = next((rank for rank in task.receivers if rank not in receivers), None)
        if other is not None or not task.receivers:
            found = "no rank" if other is None else f"rank {other}"
            raise VerifyException(f"'pipe.transfer' {op.label}: {found} receives, expected ranks of @{op.mesh.data}")
        if task.part >= parts:
            raise VerifyException(f"'pipe.transfer' {op.label}: part {task.part} is sent, expected one of {parts}")


class _Loop:
    """The fragments of a function, and the transfers that its schedule names."""

    def __init__(self, func: FuncOp, stages: Stages, meshes: Sequence[MeshOp]) -> None:
        self.func, self.stages = func, stages
        self.slots = schedule_of(func)
        if len(self.slots) != len(stages.names):
            raise VerifyException(f"{SCHEDULE} lists {len(self.slots)} stages, the function has {len(stages.names)}")
        ops = tuple(func.body.block.ops)
        self.fragments = {op.label.data: op for op in ops if isinstance(op, FragmentOp)}
        named = {slot.label for slots in self.slots for slot in slots if slot.action is not Action.RUN}
        self.transfers = {op.label.data: op for op in ops if isinstance(op, TransferOp) and op.label.data in named}
        axes = {op.axis.data for op in self.fragments.values()}
        if len(axes) > 1:
            raise VerifyException(f"{SCHEDULE} has fragments over {' and '.join(sorted(axes))}, expected one axis")
        counts = {mesh.axis(axis).size for op in self.fragments.values() for axis in axes
                  if (mesh := _mesh_of(op, stages, meshes)) is not None}  # fmt: skip
        if len(counts) > 1:
            raise VerifyException(f"the loop of {SCHEDULE} has {' and '.join(map(str, sorted(counts)))} parts")
        self.parts = max(counts, default=0)
        self._known: dict[int, dict[Slot, None]] = {}

    def verify(self) -> None:
        """Verify the slots of each stage, and that its loop reads no value that is produced after the loop."""
        for stage, slots in enumerate(self.slots):
            done: set[Slot] = set()
            for slot in slots:
                where = f'{SCHEDULE} of stage {stage}: {slot.action} "{slot.label}" {slot.part}'
                if slot not in self._of_stage(stage):
                    raise VerifyException(f"{where} is no fragment or transfer of this stage, or has no such part")
                if slot in done:
                    raise VerifyException(f"{where} is listed twice")
                if missing := next((needed for needed in self._before(slot, stage) if needed not in done), None):
                    raise VerifyException(
                        f'{where} comes before {missing.action} "{missing.label}" {missing.part}, which it needs'
                    )
                done.add(slot)
            if left := next((needed for needed in self._of_stage(stage) if needed not in done), None):
                raise VerifyException(f'{SCHEDULE} of stage {stage} lacks {left.action} "{left.label}" {left.part}')
        for program in stage_programs(self.func):
            self._verify_place(program)

    def _verify_place(self, program: StageProgram) -> None:
        """Verify that the loop of a stage reads only values that other ops of the stage produce before it."""
        begin = next((index for index, entry in enumerate(program.entries) if entry.part is not None), 0)
        late = {entry.op for entry in program.entries[begin:] if entry.part is None}
        for op in program.loop if late else ():
            if value := next((value for value in values_read(op) if value.owner in late), None):
                raise VerifyException(
                    f"{SCHEDULE} of stage {program.stage}: its loop reads %{value.name_hint or '?'}, produced later;"
                    " move the producer before the stage's first fragment"
                )

    def _of_stage(self, stage: int) -> dict[Slot, None]:
        """Return all slots that a stage must have."""
        if stage not in self._known:
            self._known[stage] = dict.fromkeys(self._listed(stage))
        return self._known[stage]

    def _listed(self, stage: int) -> Iterator[Slot]:
        for part in range(self.parts):
            for label, op in self.fragments.items():
                if self.stages.of_op(op) == stage:
                    yield Slot(Action.RUN, label, part)
            for label, op in self.transfers.items():
                sends, receives = (self.stages.of_value(value) == stage for value in (op.operand, op.result))
                if sends or receives:
                    yield Slot(Action.START, label, part)
                if receives:
                    yield Slot(Action.WAIT, label, part)

    def _before(self, slot: Slot, stage: int) -> Iterator[Slot]:
        """Yield the slots of the same stage that `slot` depends on."""
        if slot.action is Action.RUN:
            values: Sequence[SSAValue] = values_read(self.fragments[slot.label])
        elif self.stages.of_value(self.transfers[slot.label].operand) == stage:
            values = (self.transfers[slot.label].operand,)
        else:
            values = ()
        for value in values:
            if isinstance(op := value.owner, Operation):
                if isinstance(op, FragmentOp):
                    yield Slot(Action.RUN, op.label.data, slot.part)
                elif isinstance(op, TransferOp) and op.label.data in self.transfers:
                    yield Slot(Action.WAIT, op.label.data, slot.part)
        if slot.action is Action.WAIT:
            yield Slot(Action.START, slot.label, slot.part)
