"""Find the operands that the ops of a program overwrite (`spmd.reuses`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from xdsl.ir import Operation

from ...dialects.pipe import FragmentOp
from ...dialects.reuse import REUSES, results_by_reused, reused_by_result
from ...dialects.train import overwritten_by_update
from .errors import EmitError

Overwritten: TypeAlias = Mapping[Operation, Mapping[int, int]]
"""Op -> operand that it overwrites -> result in the memory of this operand."""

IN_PLACE = {"aten.add.Tensor": "aten.add_.Tensor", "foreach": "foreach_"}
"""Call -> its in-place form, which writes to the first operand."""


def overwritten_operands(ops: Iterable[Operation]) -> Overwritten:
    """
    Return the operands that each op of a function overwrites.

    Raises:
        EmitError: an update lacks `spmd.reuses`.
    """
    return {op: _overwritten(op) for op in ops}


def _overwritten(op: Operation) -> Mapping[int, int]:
    if isinstance(op, FragmentOp):
        return {}
    if REUSES not in op.attributes and overwritten_by_update(op):
        raise EmitError(op, f"lacks the operands that it overwrites ({REUSES}); run reuse-buffers")
    return results_by_reused(op)


def summed_in_place(fragment: FragmentOp) -> Sequence[bool]:
    """
    Return, for each result of a fragment, whether later parts are added to the memory of the first part.

    Raises:
        EmitError: the fragment lacks `spmd.reuses`.
    """
    reused = reused_by_result(fragment)
    if reused is None and fragment.outs:
        raise EmitError(fragment, f"lacks the buffers that its parts are summed in ({REUSES}); run reuse-buffers")
    return [operand >= 0 for operand in reused or ()]
