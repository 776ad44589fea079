"""
Emission: from a lowered step to the text of one Python file that reads as a person would write it.

The module holds one function whose ops all carry a signature, with collectives in the place of reshards. The
text imports torch and the runtime alone: a step function on local tensors, and the plan that the runtime
prepares the step from. A fragment of the step is a function of its own. All ranks run the same text; what differs
between them stands in one table of sizes. Updates, and sums of values that nothing else reads, are written into the
memory of an operand (`ownership`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from .emit_body import Body, Program
from .emit_checks import check_lowered, the_mesh, the_step
from .emit_effects import overwritten_operands, replaced_arguments, roles_of_arguments
from .emit_layout import INDENT, lines
from .emit_plan import argument_name, docstring, mesh_doc, plan_doc
from .emit_where import Where

_IMPORTS = (
    "",
    "import torch",
    "",
    "from shardwright import runtime as rt",
    "",
    "aten = torch.ops.aten",
    "",
)


def emit_python(module: ModuleOp, *, name: str, step_spec: str | None, versions: Mapping[str, str]) -> str:
    """
    The program of a lowered step.

    Args:
        name: what the program is called in its docstring and plan.
        step_spec: where the runtime finds the model, as `package.module:function`, if anywhere.
        versions: the versions of what made the program, by package.

    Raises:
        EmitError: something is left to decide, or the step does what a program cannot; the message says what.
    """
    mesh, func = the_mesh(module), the_step(module)
    check_lowered(func)
    program = Program(mesh)
    body = list(step_function(program, func))
    head = plan_doc(func, tuple(program.groups), name=name, step_spec=step_spec, versions=versions)
    text = [*docstring(name, mesh, versions), *_IMPORTS, *lines(mesh_doc(mesh)), "", *lines(head)]
    if program.table:
        text += ["", "# What differs between ranks: an entry per rank.", *lines(program.table.table())]
    for function in program.functions.values():
        text += ["", "", *function]
    text += ["", "", *body, "", "", 'if __name__ == "__main__":', f"{INDENT}rt.main(PLAN, step)"]
    return "\n".join(text) + "\n"


def step_function(program: Program, func: FuncOp) -> Iterator[str]:
    """The function `step`, of the communicator and the step's arguments; those of its fragments join the program."""
    block = func.body.block
    replaced = [block.args[index] for index in replaced_arguments(func)]
    overwritten = overwritten_operands(block, program.mesh, block.args, replaced)
    body = Body(program, Where(program.mesh), block, overwritten)
    roles = roles_of_arguments(func)
    names = [body.names.new(a, argument_name(r)) for a, r in zip(block.args, roles, strict=True)]
    statements = [line for op in block.ops for line in body.statement(op)]
    yield from body.head("step", names)
    yield from statements
