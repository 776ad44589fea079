"""
Emission: from a lowered step to the text of one Python file that reads as a person would write it.

The module holds one function whose ops all carry a signature, with collectives in the place of reshards. The
text imports torch and the runtime alone: a step function on local tensors, and the plan that the runtime
prepares the step from. All ranks run the same text; what differs between them stands in one table of sizes.
Updates, and sums of values that nothing else reads, are written into the memory of an operand (`ownership`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ..dialects.compute import ComputeOp
from ..dialects.spmd import CollectiveOp, FreeOp, StartOp, TokenType, WaitOp
from ..dialects.train import TrainOp
from ..ir.mesh import Mesh
from .emit_calls import Calls, operands_to_copy, returns_list
from .emit_checks import check_lowered, the_mesh, the_step
from .emit_collectives import Collectives
from .emit_effects import overwritten_operands, roles_of_arguments
from .emit_empty import Empties
from .emit_errors import EmitError, place
from .emit_layout import INDENT, WIDTH, assignment, call, filled, lines, tuple_of
from .emit_names import Names, base_name
from .emit_plan import argument_name, docstring, mesh_doc, plan_doc
from .emit_sizes import RANK, Sizes

_UNUSED = "_"
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
    check_lowered(func, mesh)
    step = _Step(func, mesh)
    body = list(step.lines())
    head = plan_doc(func, step.collectives.groups, name=name, step_spec=step_spec, versions=versions)
    text = [*docstring(name, mesh, versions), *_IMPORTS, *lines(mesh_doc(mesh)), "", *lines(head)]
    if step.sizes:
        text += ["", "# What differs between ranks: an entry per rank.", *lines(step.sizes.table())]
    text += ["", "", *body, "", "", 'if __name__ == "__main__":', f"{INDENT}rt.main(PLAN, step)"]
    return "\n".join(text) + "\n"


class _Step:
    """The step function while it is written."""

    def __init__(self, func: FuncOp, mesh: Mesh) -> None:
        self.func, self.block = func, func.body.block
        self.names, self.sizes = Names(), Sizes()
        self.calls = Calls(mesh, self.names, self.sizes)
        self.empties = Empties(mesh, self.names, self.sizes)
        self.collectives = Collectives(mesh, self.names, self.sizes)
        self.overwritten = overwritten_operands(func, mesh)
        self.last_use = {value: op for op in self.block.ops if not isinstance(op, FreeOp) for value in _read(op)}
        self.frees = any(isinstance(op, FreeOp) for op in self.block.ops)
        self.place = ""

    def lines(self) -> Iterator[str]:
        """The text of the function."""
        roles = roles_of_arguments(self.func)
        names = [self.names.new(a, argument_name(r)) for a, r in zip(self.block.args, roles, strict=True)]
        body = [line for op in self.block.ops for line in self._statement(op)]
        yield from lines(call("def step", ["comm", *names]), suffix=":")
        if self.sizes.uses_rank:
            yield f"{INDENT}{RANK} = comm.rank"
        yield from body

    def _statement(self, op: Operation) -> Iterator[str]:
        match op:
            case ReturnOp():
                yield ""
                yield from self._return([self.names[value] for value in op.arguments])
            case FreeOp():
                yield from self._free(op)
            case ComputeOp() | CollectiveOp() | StartOp() | WaitOp():
                yield from self._comment(op)
                yield from self._assignment(op)
                if isinstance(op, WaitOp):
                    yield from self._end(op.token)
            case _:
                raise EmitError(op, "is not an op of a lowered step")

    def _comment(self, op: Operation) -> Iterator[str]:
        """A line that says which layer and line of the model follows, where that changes."""
        if (here := place(op)) and here != self.place:
            self.place = here
            if op is not self.block.first_op:
                yield ""
            yield f"{INDENT}# {here}"[:WIDTH]
        if isinstance(op, ComputeOp) and (copied := operands_to_copy(op, self.overwritten[op])):
            names = ", ".join(self.names[op.args[index]] for index in sorted(copied))
            yield f"{INDENT}# still needed as it is: {names}"[:WIDTH]

    def _assignment(self, op: ComputeOp | CollectiveOp | StartOp | WaitOp) -> Iterator[str]:
        """`results = call(...)`."""
        targets = [self._target(op, index) for index in range(len(op.results))]
        key = next((name for name in targets if name != _UNUSED), op.name)
        match op:
            case ComputeOp():
                expression = self.calls.expression(op, key, self.overwritten[op])
                expression = self.empties.guarded(op, key, expression)
            case CollectiveOp():
                expression = self.collectives.expression(op, key, donate=bool(self.overwritten[op]))
            case StartOp():
                expression = self.collectives.start(op, key, donate=len(self.overwritten[op]) == len(op.args))
            case WaitOp():
                expression = call("comm.wait", [self.names[op.token]])
        unpacked = isinstance(op, WaitOp) or (isinstance(op, ComputeOp) and returns_list(op))
        yield from assignment(targets, expression, INDENT, unpacked=unpacked)

    def _target(self, op: Operation, index: int) -> str:
        """The name of a result: that of the operand of which it is a new form, or its own."""
        result = op.results[index]
        if all(isinstance(use.operation, FreeOp) for use in result.uses):
            return _UNUSED
        operand = self._earlier_form(op, index)
        if operand is not None and self.names.holds(operand):
            if isinstance(op, TrainOp) or base_name(result) in (None, base_name(operand)):
                return self.names.share(result, operand)
        return self.names.new(result, "token" if isinstance(op, StartOp) else None)

    def _earlier_form(self, op: Operation, index: int) -> SSAValue | None:
        """The operand that is not read again and whose memory or, by a collective, place a result takes."""
        match op:
            case ComputeOp():
                return next((op.args[i] for i, out in self.overwritten[op].items() if out == index), None)
            case CollectiveOp() | WaitOp():
                source = op.operand if isinstance(op, CollectiveOp) else op.start.args[index]
                return source if self.last_use[source] is op else None
            case _:
                return None

    def _end(self, token: SSAValue) -> Iterator[str]:
        """Drop a token, which holds on to operands and results."""
        freed = any(isinstance(use.operation, FreeOp) for use in token.uses)
        if self.frees and not freed:
            yield f"{INDENT}del {self.names[token]}"
            self.names.release(token)

    @staticmethod
    def _return(names: list[str]) -> Iterator[str]:
        line = f"{INDENT}return {', '.join(names)}{',' if len(names) == 1 else ''}"
        yield from [line] if len(line) <= WIDTH else lines(tuple_of(names, "return "), INDENT)

    def _free(self, op: FreeOp) -> Iterator[str]:
        """`del` of the names that still stand for freed values: as many to a line as fit."""
        freed = [value for value in op.args if self.names.holds(value)]
        names = [self.names[value] for value in freed]
        yield from (f"{INDENT}del {line}" for line in filled(names, len(f"{INDENT}del ")))
        for value in freed:
            if isinstance(value.type, TokenType):
                self.names.release(value)


def _read(op: Operation) -> Iterable[SSAValue]:
    """The values whose memory `op` reads; what was started is read until it is over."""
    return (op.token, *op.start.args) if isinstance(op, WaitOp) else op.operands
