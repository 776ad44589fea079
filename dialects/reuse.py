"""Results that are written into the memory of an operand: the attribute that `reuse-buffers` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ..ir.collectives import CollectiveKind
from .aten import AtenOp
from .pipe import FragmentOp, TransferOp
from .spmd import AccumulateOp, AllReduceOp, StartOp
from .train import ForeachOp, overwritten_by_update

REUSES = "spmd.reuses"
"""
On an op: for each result, the index of the operand whose memory it takes over, or -1 for new memory. On a
`spmd.start` there is an entry for each operand, for the result of the `spmd.wait`. On a `pipe.fragment`, the indices
refer to its `pipe.yield`, and the sum over the parts accumulates in the memory of the first part's value.
"""


def set_reuses(op: Operation, operands: Sequence[int]) -> None:
    """Set the operands whose memory the results of an op take over."""
    op.attributes[REUSES] = DenseArrayBase.from_list(i64, operands)


def reused_by_result(op: Operation) -> Sequence[int] | None:
    """Return for each result the operand whose memory it takes over, or -1; return None before that is decided."""
    attribute = op.attributes.get(REUSES)
    return tuple(map(int, attribute.iter_values())) if isinstance(attribute, DenseArrayBase) else None


def results_by_reused(op: Operation) -> Mapping[int, int]:
    """Map each operand whose memory is taken over to the result that takes it: of a `spmd.start`, to its token."""
    reused = reused_by_result(op) or ()
    of_token = isinstance(op, StartOp)
    return {operand: 0 if of_token else result for result, operand in enumerate(reused) if operand >= 0}


def values_taken_over(op: Operation) -> Sequence[SSAValue]:
    """Return the operands that an op overwrites; empty for a fragment, which overwrites values inside of it."""
    if isinstance(op, FragmentOp):
        return ()
    # The attribute may not be verified yet.
    return [op.operands[index] for index in results_by_reused(op) if index < len(op.operands)]


def memory_of(value: SSAValue) -> SSAValue:
    """Return the root of the chain of views that ends in `value`; they all share its memory."""
    while isinstance(op := value.owner, AtenOp) and op.spec.view and op.operands:
        value = op.operands[0]
    return value


def reusable_operands(op: Operation) -> Mapping[int, int]:
    """
    Map each result that may overwrite an operand to this operand, by their positions.

    Positions of a fragment, or of a start, are counted as in `REUSES`.
    """
    match op:
        case _ if written := overwritten_by_update(op):
            return {result: operand for operand, result in written}
        case AllReduceOp() | AccumulateOp():
            return {0: 0}
        case AtenOp() if op.overload == "add.Tensor" and _is_alike(op):
            return {0: 0}
        case FragmentOp():
            count = len(op.outs)
        case StartOp():
            count = len(op.args) if op.collective is CollectiveKind.ALL_REDUCE else 0
        case ForeachOp():
            count = op.count
        case _:
            count = 0
    return {position: position for position in range(count)}


def _is_alike(op: AtenOp) -> bool:
    """Whether the first operand has the shape of the result on every rank."""
    if op.args[0].type != op.outs[0].type:
        return False
    return op.signature is None or op.signature.operands[0].dims == op.signature.results[0].dims


def reuses_all_or_none(op: Operation) -> bool:
    """Whether an op takes over memory for all of its results or for none, as torch's multi-tensor functions do."""
    return isinstance(op, ForeachOp) and not overwritten_by_update(op)


def verify_reuses(op: Operation) -> None:
    """
    Raise VerifyException unless `spmd.reuses` has an entry for each result: -1, or an operand that the result may
    overwrite and that is not sent to another stage.
    """
    if (reused := reused_by_result(op)) is None:
        return
    operands: Sequence[SSAValue] = op.terminator.args if isinstance(op, FragmentOp) else op.operands
    results = len(op.operands if isinstance(op, StartOp) else op.results)
    if len(reused) != results:
        plural = "operands" if isinstance(op, StartOp) else "results"
        raise VerifyException(f"{REUSES} has {len(reused)} entries, expected one for each of {results} {plural}")
    reusable = reusable_operands(op)
    for position, operand in enumerate(reused):
        if operand == -1:
            continue
        if operand != (allowed := reusable.get(position)):
            expected = "-1" if allowed is None else f"-1 or {allowed}"
            raise VerifyException(f"{REUSES} has operand {operand} for entry {position}, expected {expected}")
        if any(isinstance(use.operation, TransferOp) for use in operands[operand].uses):
            raise VerifyException(f"{REUSES} has operand {operand}, which a 'pipe.transfer' sends")
    able = [operand for position, operand in enumerate(reused) if position in reusable]
    if reuses_all_or_none(op) and 0 < able.count(-1) < len(able):
        raise VerifyException(f"{REUSES} is {list(reused)}, expected memory of an operand for all results or for none")
