"""Ops that a pass puts beside or in the place of another."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.aten import ATEN_OPS, AtenOp
from ...dialects.step import BACKWARD, CHECKPOINT, RECOMPUTED


def like(
    op: Operation,
    name: str,
    operands: Sequence[SSAValue],
    types: Sequence[Attribute],
    hint: str,
    **given: Attribute,
) -> AtenOp:
    """An aten op with the location and phase of `op`."""
    phase = {name: op.attributes[name] for name in (BACKWARD, CHECKPOINT, RECOMPUTED) if name in op.attributes}
    new = ATEN_OPS[name](operands=[operands], result_types=[types], attributes=given | phase)
    new.location = op.location
    new.results[0].name_hint = hint
    return new
