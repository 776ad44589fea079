"""
Emit a lowered step as the text of one readable Python file.

The module holds one function whose ops all have a signature, with collectives in place of reshards. The text imports
only torch and the runtime; it defines a step function on local tensors, and a plan that tells the runtime how to set
up the step. Each fragment of the step becomes a separate function. All ranks run the same text; one table of sizes
holds the differences between ranks. Updates and sums overwrite an operand if the IR says so (`spmd.reuses`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...dialects import train
from ...dialects.pipe import FragmentOp
from .body import Program
from .check_program import ProgramTextError, check_program
from .equal_layers import ValueUses
from .errors import EmitError
from .fragments import FragmentBody, StepBody, find_layers
from .layered_entries import shared_forms
from .layout import INDENT, Doc, Group, lines, literal, tuple_of
from .plan import PlanFacts, axes_doc, docstring, mesh_doc, plan_doc, transfer_docs
from .sizes import Table
from .stage_body import StageBody
from .stages import LoweredStage, check_lowered, stages_of, the_step
from .where import Where

_IMPORTS = (
    "",
    "import torch",
    "",
    "from shardwright import runtime as rt",
    "",
    "aten = torch.ops.aten",
    "",
)


def emit_python(
    module: ModuleOp,
    *,
    name: str,
    step_spec: str | None,
    versions: Mapping[str, str],
    ticks: dict[Operation, int] | None = None,
) -> str:
    """
    Return the program of a lowered step.

    Args:
        name: name of the program in its docstring and plan.
        step_spec: `package.module:function` that builds the model at run time, if any.
        versions: package -> version, for the packages that created the program.
        ticks: if given, the program announces each op with `comm.tick(number)`, and other code with `comm.tick()`;
            the numbers of the ops are stored here.

    Raises:
        EmitError: a decision is missing, or the step cannot be written as a program; the message names the op.
    """
    func = the_step(module)
    check_lowered(func)
    about: PlanFacts = {"name": name, "step_spec": step_spec, "versions": versions}
    stages = stages_of(module, func)
    meshes = [stage.mesh for stage in stages]
    text = [*docstring(func, name, meshes, versions), *_IMPORTS, *_program(stages, about, ticks)]
    program = "\n".join(text) + "\n"
    try:
        check_program(program)
    except ProgramTextError as error:
        raise EmitError(func, f"the emitted program {error}") from error
    return program


def _program(stages: Sequence[LoweredStage], about: PlanFacts, ticks: dict[Operation, int] | None) -> Iterator[str]:
    """Write the text of a program after the imports."""
    is_staged = bool(stages[0].suffix)
    table, functions = Table(), dict[str, list[str]]()
    programs = [Program(stage.mesh, table, functions=functions, ticks=ticks) for stage in stages]
    steps = _steps(stages, programs)
    for stage in stages:
        yield from _mesh(stage, is_staged=is_staged)
    transfers = list(transfer_docs(stages))
    if transfers:
        yield from ("", *lines(tuple_of(transfers, "TRANSFERS = ", fill=False)))
    plans: list[Group] = []
    for stage, program in zip(stages, programs, strict=True):
        more: dict[str, Doc] = {"ranks": literal(stage.ranks)} if is_staged else {}
        more |= {"transfers": "TRANSFERS"} if transfers else {}
        plans.append(plan_doc(stage, tuple(program.groups), **about, more=more))
    forms, plans = shared_forms(plans) if is_staged else ([], plans)
    for doc in (*forms, *plans):
        yield from ("", *lines(doc))
    if table:
        which = "the ranks of a stage" if is_staged else "ranks"
        yield from ("", f"# What differs between {which}: an entry per rank.", *lines(table.table()))
    for function in (*functions.values(), *steps):
        yield from ("", "", *function)
    if is_staged:
        listed = (f"rt.Stage(PLAN{stage.suffix}, step{stage.suffix})" for stage in stages)
        yield from ("", "", *lines(tuple_of(listed, "STAGES = ")))
    if train.FORWARD not in stages[0].func.attributes:
        yield from ("",) if is_staged else ("", "")
        yield from ('if __name__ == "__main__":', f"{INDENT}rt.{'launch(STAGES)' if is_staged else 'main(PLAN, step)'}")


def _mesh(stage: LoweredStage, *, is_staged: bool) -> Iterator[str]:
    """Write the mesh of a stage, and the mesh with temporal axes that transfers of a stage refer to."""
    yield from lines(mesh_doc(stage.mesh, f"MESH{stage.suffix}"))
    if is_staged and (times := [axis for axis in stage.mesh.axes if axis not in stage.mesh.spatial]):
        yield from lines(axes_doc(f"TIMED{stage.suffix} = MESH{stage.suffix}.over", times))


def _steps(stages: Sequence[LoweredStage], programs: Sequence[Program]) -> list[list[str]]:
    """Return the text of the step function of each stage, and add the functions that it calls to its program."""
    try:
        bodies = [_body(stage, program) for stage, program in zip(stages, programs, strict=True)]
        find_layers(bodies)
        return [list(body.step()) for body in bodies]
    finally:
        for free in (free for program in programs for free in program.added_frees):
            free.erase()


def _body(stage: LoweredStage, program: Program) -> StepBody:
    """Return the writer of the step function of a stage."""
    fragments = [FragmentBody(program, op) for op in stage.program.ops if isinstance(op, FragmentOp)]
    if stage.suffix:
        return StageBody(program, stage, fragments)
    uses = ValueUses.of(list(stage.func.body.block.ops), Where(program.mesh))
    return StepBody(program, stage, uses, fragments)
