"""Tables of all fused ops, and of all definitions of the runtime's functions."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    attention_ops,
    cross_entropy_ops,
    grouped_ops,
    indexed_ops,
    list_ops,
    random_ops,
    recurrent_ops,
    update_ops,
)
from .fused_op import Definition, FusedOp

FUSED_OPS: Mapping[str, FusedOp] = {
    op.name: op
    for family in (attention_ops, cross_entropy_ops, grouped_ops, list_ops, random_ops, recurrent_ops)
    for op in family.OPS
}

BY_DEFINITION: Mapping[Definition, FusedOp] = {op.definition: op for op in FUSED_OPS.values()}

STANDING_FOR: Mapping[str, tuple[FusedOp, tuple[str, ...]]] = {
    theirs: (op, names) for op in FUSED_OPS.values() for theirs, names in op.stands_for.items()
}
"""Full name of a torch op -> the fused op that replaces it, and the names of the op's arguments."""

FUNCTIONS: Mapping[str, Definition] = {
    **{name: op.definition for name, op in FUSED_OPS.items()},
    **indexed_ops.FUNCTIONS,
    **update_ops.FUNCTIONS,
}
"""Name of a function of the runtime -> its definition."""
