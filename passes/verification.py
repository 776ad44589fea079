"""Verifying a module, with the op at fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpTraits
from xdsl.irdl import IRDLOperation, OpDef
from xdsl.utils.exceptions import DiagnosticException

from ..dialects.faults import InnerFault
from ..dialects.uses import verify_uses
from ..dialects.verified import VerifiesPlan


@dataclass(frozen=True)
class Fault:
    """The innermost op that does not verify, and why."""

    op: Operation
    message: str


def first_fault(module: Operation) -> Fault | None:
    """Return the first fault of `module`, None if it is valid: what `module.verify()` finds, and where it is."""
    fault = _innermost_fault(module)
    # Verifiers look at the ops around them, which may be those at fault, or go around in a circle.
    return None if fault is None else next(chain(_malformed(module), _early_uses(module)), fault)


def _malformed(module: Operation) -> Iterator[Fault]:
    """Yield the ops, outermost first, that lack what their definition has, or have it of another type."""
    for op in module.walk():
        if isinstance(op, IRDLOperation):
            try:
                _alone(op.get_irdl_definition()).verify(op)
            except Exception as error:
                yield _fault(op, error)


def _alone(definition: OpDef) -> OpDef:
    """A definition without the trait that looks into the ops of a function or module."""
    kept = tuple(trait for trait in definition.traits if not isinstance(trait, VerifiesPlan))
    return replace(definition, traits=OpTraits(lambda: kept))


def _early_uses(module: Operation) -> Iterator[Fault]:
    """Yield the first misplaced use of a value in each function."""
    for op in module.walk():
        if isinstance(op, FuncOp):
            try:
                verify_uses(op)
            except InnerFault as error:
                yield _fault(op, error)


def _innermost_fault(op: Operation) -> Fault | None:
    # A verifier of a dialect may fail in any way on IR that its author did not think of.
    try:
        op.verify()
    except Exception as error:
        inner = (child for region in op.regions for block in region.blocks for child in block.ops)
        found = next(filter(None, map(_innermost_fault, inner)), None)
        return found or _fault(op, error)
    return None


def _fault(op: Operation, error: Exception) -> Fault:
    return Fault(error.op, error.reason) if isinstance(error, InnerFault) else Fault(op, _reason(error))


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, DiagnosticException | ValueError) and text:
        return text
    if isinstance(error, NotImplementedError):
        return "has an attribute or a type that xDSL does not implement" + (f": {text}" if text else "")
    return f"its verifier raised {type(error).__name__}: {text}"
