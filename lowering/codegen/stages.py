"""Check a lowered step, and describe each of its stages: its mesh, ranks and program, its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import FragmentOp
from ...dialects.reuse import REUSES
from ...dialects.spmd import ReshardOp
from ...dialects.stage_program import StageProgram, stage_programs
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...dialects.train import overwritten_by_update
from ...ir.mesh import Mesh
from .errors import EmitError


@dataclass(frozen=True)
class LoweredStage:
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


def stages_of(module: ModuleOp, func: FuncOp) -> list[LoweredStage]:
    """
    Return the stages of a lowered step, or the whole step if it has none.

    Raises:
        EmitError: a fragment is outside the schedule.
    """
    names, programs = Stages(func).names, stage_programs(func)
    if not names:
        meshes = [op.mesh for op in module.ops if isinstance(op, MeshOp)]
        if len(meshes) != 1:
            raise EmitError(module, f"has {len(meshes)} meshes, expected one; run add-cluster")
        return [LoweredStage(func, meshes[0], range(meshes[0].device_count), programs[0])]
    meshes = {op.sym_name.data: op for op in module.ops if isinstance(op, MeshOp)}
    for program in programs:
        if stray := next((e.op for e in program.entries if isinstance(e.op, FragmentOp) and e.part is None), None):
            raise EmitError(stray, "is outside of the schedule; run schedule-pipeline")
    return [
        LoweredStage(func, meshes[name].mesh, meshes[name].ranks, program)
        for name, program in zip(names, programs, strict=True)
    ]


def the_step(module: ModuleOp) -> FuncOp:
    """Return the only function of the module."""
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    if len(functions) != 1:
        raise EmitError(module, f"has {len(functions)} functions, expected one")
    if len(functions[0].body.blocks) != 1:
        raise EmitError(functions[0], f"has {len(functions[0].body.blocks)} blocks, expected one")
    return functions[0]


def check_lowered(func: FuncOp) -> None:
    """
    Check that every operand has the sharding that its op requires, that every resharding is a collective, and that the
    step says which memory is overwritten.

    Raises:
        EmitError: an op violates this; the error names the first such op.
    """
    for op in func.body.walk():
        if isinstance(op, ReshardOp):
            raise EmitError(op, "has no collective yet; run select-collectives")
        if isinstance(op, ComputeOp):
            _check_operands(op)
        if REUSES not in op.attributes and overwritten_by_update(op):
            raise EmitError(op, f"lacks the operands that it overwrites ({REUSES}); run reuse-buffers")
        if REUSES not in op.attributes and isinstance(op, FragmentOp) and op.outs:
            raise EmitError(op, f"lacks the buffers that its parts are summed in ({REUSES}); run reuse-buffers")


def _check_operands(op: ComputeOp) -> None:
    if op.signature is None:
        raise EmitError(op, "has no signature; run search-strategy")
    for name, value, demanded in zip(op.operand_names(), op.args, op.signature.operands, strict=True):
        if (actual := sharding_of(value)) != demanded:
            raise EmitError(op, f"operand '{name}' is spread as {actual}, expected {demanded}; run insert-resharding")
