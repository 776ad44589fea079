"""Describe each stage of a step: its mesh, ranks and program, its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
        index: number of the stage.
        mesh: mesh of the stage.
        ranks: ranks of the job, in the order of the ranks of `mesh`.
        program: ops of the stage, in order.
    """

    func: FuncOp
    index: int
    mesh: Mesh
    ranks: tuple[int, ...]
    program: StageProgram

    @cached_property
    def _stages(self) -> Stages:
        return Stages(self.func)

    @cached_property
    def arguments(self) -> Sequence[BlockArgument]:
        """The arguments of the step that are on this stage."""
        return [value for value in self.func.body.block.args if self._stages.of_value(value) == self.index]

    @cached_property
    def results(self) -> Sequence[int]:
        """The indices of the step's results that this stage produces."""
        done = self.func.body.block.last_op
        assert isinstance(done, ReturnOp)
        return [i for i, value in enumerate(done.arguments) if self._stages.of_value(value) == self.index]

    def sends(self, op: TransferOp) -> bool:
        """Return whether this stage is the source of a transfer, given that it is the source or the target."""
        return self._stages.of_value(op.operand) == self.index


def stages_of(module: ModuleOp, func: FuncOp) -> list[StageOps]:
    """
    Return the stages of a lowered step.

    Raises:
        EmitError: a fragment is outside the schedule.
    """
    stages = Stages(func)
    if not stages.names:
        return []
    meshes = {op.sym_name.data: op for op in module.ops if isinstance(op, MeshOp)}
    result: list[StageOps] = []
    for index, (name, program) in enumerate(zip(stages.names, stage_programs(func), strict=True)):
        if stray := next((e.op for e in program.entries if isinstance(e.op, FragmentOp) and e.part is None), None):
            raise EmitError(stray, "is outside of the schedule; run schedule-pipeline")
        mesh = meshes[name]
        result.append(StageOps(func, index, mesh.mesh, mesh.ranks, program))
    return result
