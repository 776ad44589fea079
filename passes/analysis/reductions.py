"""
In which dtype gradients are reduced over devices, where a step says so (`train.reduce_dtype`).

In mixed precision the gradient of a weight is made in a narrow dtype and then cast to that of the weight:

    %g = aten.mm %x, %d : bfloat16      partial: each device has the sum over its own rows
    %h = aten.t %g : bfloat16
    %w = aten._to_copy %h : float32     the widening cast
    train.sgd %weight, %w               takes the sum over all devices

Reduced in the wide dtype, every narrow value stays partial up to the cast; reduced in the narrow one, the cast takes no
partial value. Without one both are allowed, and the search takes what costs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, dtype_of, element_bytes, shape_of
from ...dialects.pipe import TransferOp
from .compute import is_cast, spec_of

_ADDITION = "aten.add.Tensor"


@dataclass(frozen=True)
class Reductions:
    """
    What a search must obey.

    Args:
        unreduced: values that stay partial where they are.
        reduced: widening casts, which take no partial value.
    """

    unreduced: frozenset[SSAValue] = frozenset()
    reduced: frozenset[ComputeOp] = frozenset()


def reductions_of(func: FuncOp) -> Reductions:
    """What a step function says."""
    dtype = func.attributes.get(train.REDUCE_DTYPE)
    if not isinstance(dtype, StringAttr):
        return Reductions()
    casts = widening_casts(func)
    reduced = frozenset(cast for cast in casts if dtype_of(cast.args[0]) == dtype.data)
    wide = (cast for cast in casts if dtype_of(cast.outs[0]) == dtype.data)
    return Reductions(frozenset(value for cast in wide for value in _narrow(cast.args[0])), reduced)


def widening_casts(func: FuncOp) -> list[ComputeOp]:
    """The casts of gradients to more bytes, on the way from where they are made to the updates; in program order."""
    values = gradient_values(func)
    return [op for op in func.body.block.ops if isinstance(op, ComputeOp) and _widens(op) and op.outs[0] in values]


def gradient_values(func: FuncOp) -> set[SSAValue]:
    """The gradients that updates take, and those that they are made of element by element, back to a widening cast."""
    seen = set[SSAValue]()
    pending = [op.operands[at] for op in func.body.block.ops for at in train.gradients_of(op)]
    while pending:
        value = pending.pop()
        op = value.op if isinstance(value, OpResult) else None
        if op is None or value in seen:
            continue
        seen.add(value)
        if isinstance(op, TransferOp):
            pending.append(op.operand)
        elif isinstance(op, ComputeOp) and _keeps_elements(op) and not _widens(op):
            pending += [each for each in op.args if prod(shape_of(each)) == prod(shape_of(value))]
    return seen


def _widens(op: ComputeOp) -> bool:
    return is_cast(op) and element_bytes(op.outs[0]) > element_bytes(op.args[0])


def _keeps_elements(op: ComputeOp) -> bool:
    """Whether a gradient goes through an op element by element: clipped, scaled, added to another, viewed."""
    return spec_of(op).view or spec_of(op).family == "elementwise"


def _narrow(value: SSAValue) -> Iterator[SSAValue]:
    """A narrow gradient and what it is a view or a sum of."""
    yield value
    op = value.op if isinstance(value, OpResult) else None
    if isinstance(op, ComputeOp) and (spec_of(op).view or op.name == _ADDITION):
        for each in op.args:
            yield from _narrow(each)
