"""Creation of ops that a pass inserts next to another op, or in its place."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.aten import AtenOp, typed_op
from ...dialects.placed import element_of, shape_of
from ...dialects.step import BACKWARD, CHECKPOINT, RECOMPUTED


def like(
    op: Operation,
    name: str,
    operands: Sequence[SSAValue],
    shapes: Sequence[Sequence[int]],
    hint: str,
    **given: Attribute,
) -> AtenOp:
    """Return an aten op with the location and phase of `op`, results of these shapes, and torch's dtypes."""
    phase = {name: op.attributes[name] for name in (BACKWARD, CHECKPOINT, RECOMPUTED) if name in op.attributes}
    new = typed_op(name, operands, shapes, given | phase)
    new.location = op.location
    new.results[0].name_hint = hint
    return new


def cast(op: Operation, value: SSAValue, element: Attribute, hint: str, **given: Attribute) -> list[AtenOp]:
    """Return the op that casts a value to a dtype, with the location and phase of `op`; empty if not needed."""
    if element_of(value) == element:
        return []
    return [like(op, "_to_copy", [value], [shape_of(value)], hint, dtype=element, **given)]
