"""Verification of a module that finds the op at fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import is_

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpTraits
from xdsl.irdl import IRDLOperation
from xdsl.utils.exceptions import DiagnosticException

from ..dialects.faults import InnerFault
from ..dialects.uses import verify_uses
from ..dialects.verified import VerifiesPlan


@dataclass(frozen=True)
class Fault:
    """The innermost op that does not verify, and the reason."""

    op: Operation
    message: str


def first_fault(module: Operation) -> Fault | None:
    """Return the first fault of `module`, or None if it is valid: the error of `module.verify()` with its op."""
    fault = _innermost_fault(module)
    # Verifiers look at surrounding ops, which may be at fault themselves, or form a cycle.
    return None if fault is None else next(chain(_malformed(module), _early_uses(module)), fault)


def state_of(module: Operation) -> list[object]:
    """
    Return everything that verification reads: ops with their blocks, operands, types and attributes, in order.

    Attributes are immutable, so a module whose state `is_same` as at an earlier verification is still valid. Comparing
    states takes a twentieth of the time of a verification.
    """
    state: list[object] = []
    for op in module.walk():
        # Without the block, an op that leaves a region at its end would keep its place in the walk.
        state += (op, op.parent, *op.operands, *(result.type for result in op.results), *op.successors)
        for attributes in (op.attributes, op.properties):
            state += (len(attributes), *attributes, *attributes.values())
        for region in op.regions:
            state.append(region)
            for block in region.blocks:
                state += (block, *(argument.type for argument in block.args))
    return state


def is_same(state: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two states consist of the same objects. Equal copies count as different."""
    return len(state) == len(other) and all(map(is_, state, other))


def _malformed(module: Operation) -> Iterator[Fault]:
    """Yield the ops, outermost first, that lack a part of their definition, or have it with a wrong type."""
    for op in module.walk():
        if isinstance(op, IRDLOperation):
            try:
                # A trait that looks into the ops of a function or module is left out.
                definition = op.get_irdl_definition()
                traits = tuple(trait for trait in definition.traits if not isinstance(trait, VerifiesPlan))
                replace(definition, traits=OpTraits(lambda: traits)).verify(op)
            except Exception as error:
                yield _fault(op, error)


def _early_uses(module: Operation) -> Iterator[Fault]:
    """Yield the first misplaced use of a value in each function."""
    for op in module.walk():
        if isinstance(op, FuncOp):
            try:
                verify_uses(op)
            except InnerFault as error:
                yield _fault(op, error)


def _innermost_fault(op: Operation) -> Fault | None:
    # A verifier of a dialect may raise any exception on IR that its author did not expect.
    try:
        op.verify()
    except Exception as error:
        inner = (child for region in op.regions for block in region.blocks for child in block.ops)
        fault = next(filter(None, map(_innermost_fault, inner)), None)
        return fault or _fault(op, error)
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
