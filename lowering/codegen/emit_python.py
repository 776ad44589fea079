"""
Emit a lowered step as the text of one readable Python file.

The module holds one function whose ops all have a signature, with collectives in place of reshards. The text imports
only torch and the runtime; it defines a step function on local tensors, and a plan that tells the runtime how to set
up the step. Each fragment of the step becomes a separate function. All ranks run the same text; one table of sizes
holds the differences between ranks. Updates and sums overwrite an operand if the IR says so (`spmd.reuses`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...dialects import train
from ...dialects.spmd import FreeOp
from ...ir.mesh import Mesh
from .body import Program
from .check_program import ProgramTextError, check_program
from .checks import check_lowered, the_mesh, the_step
from .equal_ops import ValueUses
from .errors import EmitError
from .fragments import FragmentFunctions, LoopBody, LoopValues, find_layers
from .layered_arguments import NamedArguments, layered_arguments
from .layout import INDENT, lines
from .plan import PlanFacts, ProgramSignature, docstring, mesh_doc, plan_doc
from .stage_ops import stages_of
from .stages import staged
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
    if stages:
        text = [*docstring(func, name, [s.mesh for s in stages], versions), *_IMPORTS, *staged(stages, about, ticks)]
    else:
        mesh = the_mesh(module)
        text = [*docstring(func, name, [mesh], versions), *_IMPORTS, *_single(func, mesh, about, ticks)]
    program = "\n".join(text) + "\n"
    try:
        check_program(program)
    except ProgramTextError as error:
        raise EmitError(func, f"the emitted program {error}") from error
    return program


def _single(func: FuncOp, mesh: Mesh, about: PlanFacts, ticks: dict[Operation, int] | None) -> Iterator[str]:
    program = Program(mesh, ticks=ticks)
    step = list(step_function(program, func))
    yield from lines(mesh_doc(mesh))
    yield ""
    yield from lines(plan_doc(ProgramSignature.of(func), tuple(program.groups), **about))
    if program.table:
        yield from ("", "# What differs between ranks: an entry per rank.", *lines(program.table.table()))
    for function in (*program.functions.values(), step):
        yield from ("", "", *function)
    if train.FORWARD not in func.attributes:
        yield from ("", "", 'if __name__ == "__main__":', f"{INDENT}rt.main(PLAN, step)")


def step_function(program: Program, func: FuncOp) -> Iterator[str]:
    """Write the function `step` of the communicator and the arguments, and add the functions of fragments."""
    block = func.body.block
    ops, done = list(block.ops), block.last_op
    assert done is not None, "a step returns"
    layered = layered_arguments(func, func.body.block.args)
    lists = [values for layer in layered for values in layer.lists]
    frees = any(isinstance(op, FreeOp) for op in ops)
    uses, fragments = ValueUses.of(ops, Where(program.mesh)), FragmentFunctions.of(program, ops)
    body = LoopBody(program, uses, fragments, LoopValues.of(ops, fragments), lists, frees=frees)
    find_layers([body])
    arguments = NamedArguments(func, func.body.block.args, body.names, layered if body.layers.functions else ())
    statements = list(body.statements(body.layers.items[:-1]))
    yield from body.head("step", arguments.parameters)
    yield from arguments.head()
    yield from statements
    yield from program.tick()
    yield ""
    yield from body.returned(arguments.returned(body.names, done.operands))
