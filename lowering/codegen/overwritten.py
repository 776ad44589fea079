"""Which operands the ops of a program write over (`spmd.reuses`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from xdsl.ir import Operation

from ...dialects.pipe import FragmentOp
from ...dialects.reuse import REUSES, results_by_reused, reused_by_result
from ...dialects.train import overwritten_by_update
from .errors import EmitError

Overwritten: TypeAlias = Mapping[Operation, Mapping[int, int]]
"""By op the operands whose memory it takes over, each with the result that takes it."""

IN_PLACE = {"aten.add.Tensor": "aten.add_.Tensor", "foreach": "foreach_"}
"""Calls that can write into their first operand -> those that do."""


def overwritten_operands(ops: Iterable[Operation]) -> Overwritten:
    """
    What each op of a function takes over.

    Raises:
        EmitError: an update does not say whether it writes over its parameter.
    """
    return {op: _overwritten(op) for op in ops}


def _overwritten(op: Operation) -> Mapping[int, int]:
    if isinstance(op, FragmentOp):
        return {}
    if REUSES not in op.attributes and overwritten_by_update(op):
        raise EmitError(op, f"does not say what it writes over ({REUSES}); run reuse-buffers")
    return results_by_reused(op)


def summed_in_place(fragment: FragmentOp) -> Sequence[bool]:
    """
    Per result of a fragment, whether the parts after the first are added to the memory of what the first yields.

    Raises:
        EmitError: the fragment does not say it.
    """
    reused = reused_by_result(fragment)
    if reused is None and fragment.outs:
        raise EmitError(fragment, f"does not say where its parts are summed ({REUSES}); run reuse-buffers")
    return [operand >= 0 for operand in reused or ()]
