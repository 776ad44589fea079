"""A step of several stages, seen from each: its mesh and ranks, its program, and what it takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument

from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import FragmentOp, TransferOp
from ...dialects.stage_program import StageProgram, stage_programs
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
        program: what it runs, in order.
    """

    func: FuncOp
    index: int
    mesh: Mesh
    ranks: tuple[int, ...]
    program: StageProgram

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

    def sends(self, op: TransferOp) -> bool:
        """Whether this stage is the source of a transfer that it takes part in."""
        return Stages(self.func).of_value(op.operand) == self.index


def stages_of(module: ModuleOp, func: FuncOp) -> list[StageOps]:
    """
    The stages of a lowered step.

    Raises:
        EmitError: a part of the batch is worked on outside of the schedule.
    """
    stages = Stages(func)
    if not stages.names:
        return []
    meshes = {op.sym_name.data: op for op in module.ops if isinstance(op, MeshOp)}
    found: list[StageOps] = []
    for index, (name, program) in enumerate(zip(stages.names, stage_programs(func), strict=True)):
        if stray := next((e.op for e in program.entries if isinstance(e.op, FragmentOp) and e.part is None), None):
            raise EmitError(stray, "is in no schedule; run schedule-pipeline")
        mesh = meshes[name]
        found.append(StageOps(func, index, mesh.mesh, mesh.ranks, program))
    return found
