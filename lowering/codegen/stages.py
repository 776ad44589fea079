"""Describe each stage of a step: its mesh, ranks and program, its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument, SSAValue

from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import FragmentOp
from ...dialects.stage_program import StageProgram, stage_programs
from ...dialects.staged import Stages
from ...ir.mesh import Mesh
from .checks import the_mesh
from .errors import EmitError


@dataclass(frozen=True)
class Stage:
    """
    One stage of a step, or a whole step without stages.

    Args:
        mesh: mesh of the stage.
        ranks: ranks of the job, in the order of the ranks of `mesh`.
        program: ops of the stage, in order.
    """

    func: FuncOp
    mesh: Mesh
    ranks: Sequence[int]
    program: StageProgram

    @property
    def suffix(self) -> str:
        """The number of the stage, which ends the names of its plan and step; empty for a whole step."""
        return "" if self.program.stage is None else str(self.program.stage)

    @cached_property
    def _stages(self) -> Stages:
        return Stages(self.func)

    def has(self, value: SSAValue) -> bool:
        """Return whether a value is on this stage."""
        return self._stages.of_value(value) == self.program.stage

    @cached_property
    def arguments(self) -> Sequence[BlockArgument]:
        """The arguments of the step that are on this stage."""
        return [value for value in self.func.body.block.args if self.has(value)]

    @cached_property
    def done(self) -> ReturnOp:
        """The last op of the step."""
        done = self.func.body.block.last_op
        assert isinstance(done, ReturnOp), "a step returns"
        return done

    @cached_property
    def results(self) -> Sequence[int]:
        """The indices of the step's results that this stage produces."""
        return [index for index, value in enumerate(self.done.arguments) if self.has(value)]

    @cached_property
    def returned(self) -> Sequence[SSAValue]:
        """The values that this stage returns."""
        return [self.done.operands[index] for index in self.results]


def stages_of(module: ModuleOp, func: FuncOp) -> list[Stage]:
    """
    Return the stages of a lowered step, or the whole step if it has none.

    Raises:
        EmitError: a fragment is outside the schedule.
    """
    names, programs = Stages(func).names, stage_programs(func)
    if not names:
        mesh = the_mesh(module)
        return [Stage(func, mesh, range(mesh.device_count), programs[0])]
    meshes = {op.sym_name.data: op for op in module.ops if isinstance(op, MeshOp)}
    for program in programs:
        if stray := next((e.op for e in program.entries if isinstance(e.op, FragmentOp) and e.part is None), None):
            raise EmitError(stray, "is outside of the schedule; run schedule-pipeline")
    return [
        Stage(func, meshes[name].mesh, meshes[name].ranks, program)
        for name, program in zip(names, programs, strict=True)
    ]
