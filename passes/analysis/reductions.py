"""
The dtype of reductions of gradients over devices, if a step names one (`train.reduce_dtype`).

In mixed precision the gradient of a weight is computed in a narrow dtype and then cast to the dtype of the weight:

    %g = aten.mm %x, %d : bfloat16      partial: each device has the sum over its own rows
    %h = aten.t %g : bfloat16
    %w = aten._to_copy %h : float32     the widening cast
    train.sgd %weight, %w               takes the sum over all devices

If gradients are reduced in the wide dtype, every narrow value stays partial up to the cast; in the narrow dtype, the
cast takes no partial value. Without a dtype both are allowed, and the search takes the cheaper one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, dtype_of, element_bytes, shape_of
from ...dialects.pipe import TransferOp
from ..step.step_view import StepView
from .compute import is_cast, spec_of

_ADDITION = "aten.add.Tensor"


@dataclass(frozen=True)
class Reductions:
    """
    Constraints on a search from the dtype of reductions.

    Args:
        unreduced: values that must stay partial.
        reduced: widening casts, which must not take a partial value.
    """

    unreduced: frozenset[SSAValue] = frozenset()
    reduced: frozenset[ComputeOp] = frozenset()


def reductions_of(func: FuncOp) -> Reductions:
    """Return the constraints of a step function."""
    dtype = func.attributes.get(train.REDUCE_DTYPE)
    if not isinstance(dtype, StringAttr):
        return Reductions()
    casts = widening_casts(func)
    reduced = frozenset(cast for cast in casts if dtype_of(cast.args[0]) == dtype.data)
    wide = (cast for cast in casts if dtype_of(cast.outs[0]) == dtype.data)
    return Reductions(frozenset(value for cast in wide for value in _narrow(cast.args[0])), reduced)


def widening_casts(func: FuncOp) -> list[ComputeOp]:
    """Return the casts of gradients to more bytes, between their producers and the updates, in program order."""
    values = gradient_values(func.body.block.ops)
    return [op for op in func.body.block.ops if isinstance(op, ComputeOp) and _widens(op) and op.outs[0] in values]


def gradient_values(updates: Iterable[Operation]) -> set[SSAValue]:
    """Return the gradients that updates take and the values that they are computed from elementwise, up to a cast."""
    seen = set[SSAValue]()
    pending = [op.operands[at] for op in updates for at in train.gradients_of(op)]
    while pending:
        value = pending.pop()
        op = value.op if isinstance(value, OpResult) else None
        if op is None or value in seen:
            continue
        seen.add(value)
        if isinstance(op, TransferOp):
            pending.append(op.operand)
        elif (
            isinstance(op, ComputeOp) and (spec_of(op).view or spec_of(op).family == "elementwise") and not _widens(op)
        ):
            # The op clips a gradient, scales it, adds to it or views it.
            pending += [operand for operand in op.args if prod(shape_of(operand)) == prod(shape_of(value))]
    return seen


def gradients_of_parameters(view: StepView, is_meant: Callable[[SSAValue], bool]) -> set[SSAValue]:
    """Return the gradients of the parameters that satisfy a predicate themselves or through a cast."""
    names: set[str] = set()
    for item in view.inputs:
        casts = (use.operation for use in item.argument.uses if isinstance(use.operation, ComputeOp))
        values = (item.argument, *(cast.outs[0] for cast in casts if is_cast(cast)))
        if item.role == train.PARAM and any(map(is_meant, values)):
            names.add(item.name)
    return gradient_values(op for name, op, _ in view.grads() if name in names)


def _widens(op: ComputeOp) -> bool:
    return is_cast(op) and element_bytes(op.outs[0]) > element_bytes(op.args[0])


def _narrow(value: SSAValue) -> Iterator[SSAValue]:
    """Yield a narrow gradient and the values that it is a view or a sum of."""
    yield value
    op = value.op if isinstance(value, OpResult) else None
    if isinstance(op, ComputeOp) and (spec_of(op).view or op.name == _ADDITION):
        for operand in op.args:
            yield from _narrow(operand)
