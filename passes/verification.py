"""Whether a module is valid, and where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.utils.exceptions import DiagnosticException, VerifyException

from ..dialects.known_attributes import verify_op_attributes, verify_step_attributes
from ..dialects.schedules import verify_schedule
from ..dialects.spmd import FreeOp
from ..dialects.staged import Stages
from ..dialects.step import verify_attributes


@dataclass(frozen=True)
class Fault:
    """The innermost op that does not verify, and why."""

    op: Operation
    message: str


def first_fault(module: Operation) -> Fault | None:
    """
    Return the first fault of `module`, None if it is valid.

    Beyond xDSL's own verification, attributes are of the types that their names stand for, shardings of a function's
    arguments and results fit their types, ops use values of their own stage, what was given back is not used,
    and values in straight-line code are defined before they are used: xDSL does not look, and a pass that inserts an op
    too early would go unnoticed.
    """
    if (fault := _innermost_fault(module)) is not None:
        # Verifiers look at the ops around them, which may be those at fault, or go around in a circle.
        return next(chain(_malformed(module), _early_uses(module)), fault)
    return next(chain(_attribute_faults(module), _early_uses(module), _late_uses(module)), None)


def _malformed(module: Operation) -> Iterator[Fault]:
    """Yield the ops, outermost first, that lack what their definition has, or have it of another type."""
    for op in module.walk():
        if isinstance(op, IRDLOperation):
            try:
                op.get_irdl_definition().verify(op)
            except Exception as error:
                yield Fault(op, _reason(error))


def _innermost_fault(op: Operation) -> Fault | None:
    # A verifier of a dialect may fail in any way on IR that its author did not think of.
    try:
        op.verify()
    except Exception as error:
        inner = (child for region in op.regions for block in region.blocks for child in block.ops)
        found = next(filter(None, map(_innermost_fault, inner)), None)
        return found or Fault(op, _reason(error))
    return None


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, DiagnosticException | ValueError) and text:
        return text
    if isinstance(error, NotImplementedError):
        return "has an attribute or a type that xDSL does not implement" + (f": {text}" if text else "")
    return f"its verifier raised {type(error).__name__}: {text}"


def _attribute_faults(module: Operation) -> Iterator[Fault]:
    """
    Yield the ops with attributes of another type than their names stand for, and the functions whose arguments or
    results have roles or shardings that do not fit, or whose stages mix.
    """
    for op in module.walk():
        try:
            verify_op_attributes(op)
            if isinstance(op, FuncOp) and len(op.body.blocks) == 1:
                verify_step_attributes(op)
                verify_attributes(op)
                Stages(op).verify()
                verify_schedule(op)
        except VerifyException as error:
            yield Fault(op, str(error))


def _early_uses(module: Operation) -> Iterator[Fault]:
    """Yield every use of a value above its definition in the same block or around it, in functions."""
    for function in module.walk():
        if not isinstance(function, FuncOp):
            continue
        position = {op: index for index, op in enumerate(function.walk())}
        for user, at in position.items():
            for index, operand in enumerate(user.operands):
                definition = operand.owner
                home = definition if isinstance(definition, Block) else definition.parent
                if home is not None and all(block.parent is not home.parent for block in _blocks_around(user)):
                    yield Fault(user, f"operand {index} is defined inside of another op, which does not hand it on")
                if isinstance(definition, Block):
                    continue
                if definition.is_ancestor(user):
                    yield Fault(user, f"operand {index} is a result of the op around it, '{definition.name}'")
                if position.get(definition, -1) < at:
                    continue
                if any(block is definition.parent for block in _blocks_around(user)):
                    yield Fault(user, f"operand {index} is defined only further down, by '{definition.name}'")


def _late_uses(module: Operation) -> Iterator[Fault]:
    """Yield every use of a value below the op that gives its memory back."""
    for function in module.walk():
        if not isinstance(function, FuncOp):
            continue
        freed: set[SSAValue] = set()
        for op in function.walk():
            if late := next((value for value in op.operands if value in freed), None):
                yield Fault(op, f"uses %{late.name_hint or '?'} after its memory was given back by 'spmd.free'")
            if isinstance(op, FreeOp):
                freed.update(op.args)


def _blocks_around(op: Operation) -> Iterator[Block]:
    """Yield the block of `op`, the block of its parent op, and so on outwards."""
    around: Operation | None = op
    while around is not None and around.parent is not None:
        yield around.parent
        around = around.parent_op()
