"""Which results are written into the memory of an operand: the attribute that `reuse-buffers` writes."""

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
On an op: by result the index of the operand whose memory it takes over, -1 where it has memory of its own. On a
`spmd.start` there is an entry for each operand, which the `spmd.wait` gives back; on a `pipe.fragment`, the operands
are those of its `pipe.yield`, and the sum of the parts lies in the memory of what the first part yields.
"""


def set_reuses(op: Operation, operands: Sequence[int]) -> None:
    """Write down what the results of an op take over."""
    op.attributes[REUSES] = DenseArrayBase.from_list(i64, operands)


def reused_by_result(op: Operation) -> Sequence[int] | None:
    """By result the operand whose memory it takes over or -1; None where it is not decided."""
    given = op.attributes.get(REUSES)
    return tuple(map(int, given.iter_values())) if isinstance(given, DenseArrayBase) else None


def results_by_reused(op: Operation) -> Mapping[int, int]:
    """By operand whose memory is taken over, the result that takes it; the token of a `spmd.start` takes all."""
    reused = reused_by_result(op) or ()
    of_token = isinstance(op, StartOp)
    return {operand: 0 if of_token else result for result, operand in enumerate(reused) if operand >= 0}


def values_taken_over(op: Operation) -> Sequence[SSAValue]:
    """The operands that are written over by an op, a fragment excepted: what it takes over is inside of it."""
    if isinstance(op, FragmentOp):
        return ()
    # Uses are looked at before attributes are verified.
    return [op.operands[index] for index in results_by_reused(op) if index < len(op.operands)]


def memory_of(value: SSAValue) -> SSAValue:
    """The value whose memory another one, a view of it, shares."""
    while isinstance(op := value.owner, AtenOp) and op.spec.view and op.operands:
        value = op.operands[0]
    return value


def reusable_operand(op: Operation, position: int) -> int | None:
    """
    The operand whose memory the result at `position` may be written over, None where it needs memory of its own.
    Those of a fragment and of a start are counted as in `REUSES`.
    """
    match op:
        case _ if written := overwritten_by_update(op):
            return next(operand for operand, result in written if result == position)
        case AllReduceOp() | AccumulateOp():
            return 0
        case FragmentOp():
            return position
        case StartOp():
            return position if op.collective is CollectiveKind.ALL_REDUCE else None
        case AtenOp() if op.overload == "add.Tensor" and _is_alike(op):
            return 0
        case ForeachOp() if position < op.count:
            return position
        case _:
            return None


def _is_alike(op: AtenOp) -> bool:
    """Whether the first operand is as large as the result on every rank."""
    if op.args[0].type != op.outs[0].type:
        return False
    return op.signature is None or op.signature.operands[0].dims == op.signature.results[0].dims


def reuses_all_or_none(op: Operation) -> bool:
    """Whether an op takes over memory for all of its results or for none: torch's functions of lists do."""
    return isinstance(op, ForeachOp) and not overwritten_by_update(op)


def verify_reuses(op: Operation) -> None:
    """
    Raise VerifyException unless `spmd.reuses` has an entry for each result: -1, or the operand that it may be written
    over, which is not sent to another stage.
    """
    if (reused := reused_by_result(op)) is None:
        return
    operands: Sequence[SSAValue] = op.terminator.args if isinstance(op, FragmentOp) else op.operands
    results = len(op.operands if isinstance(op, StartOp) else op.results)
    if len(reused) != results:
        what = "operands" if isinstance(op, StartOp) else "results"
        raise VerifyException(f"{REUSES} has {len(reused)} entries, expected one for each of {results} {what}")
    for position, operand in enumerate(reused):
        if operand == -1:
            continue
        if operand != (allowed := reusable_operand(op, position)):
            expected = "-1" if allowed is None else f"-1 or {allowed}"
            raise VerifyException(f"{REUSES} has operand {operand} for entry {position}, expected {expected}")
        if any(isinstance(use.operation, TransferOp) for use in operands[operand].uses):
            raise VerifyException(f"{REUSES} has operand {operand}, which a 'pipe.transfer' sends")
    able = [operand for position, operand in enumerate(reused) if reusable_operand(op, position) is not None]
    if reuses_all_or_none(op) and 0 < able.count(-1) < len(able):
        raise VerifyException(f"{REUSES} is {list(reused)}, expected memory of an operand for all results or for none")
