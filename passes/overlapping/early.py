"""Reordering of a step's ops so that operands of collectives come earlier and other work hides the collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation, OpResult

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, value_bytes
from ...dialects.pipe import values_read
from ...dialects.spmd import CollectiveOp
from ..analysis.compute import is_contraction

_SCALAR_BYTES = 64
_FEW_OPS = 8
WINDOW = 24
"""Number of consecutive ops that `operands_first` reorders in front of a collective."""


def sources(op: Operation) -> Iterator[Operation]:
    """Yield the ops that produce the operands of `op`."""
    return (value.op for value in values_read(op) if isinstance(value, OpResult))


def is_number(collective: CollectiveOp) -> bool:
    """Return whether a collective carries only a few numbers, whose memory is negligible."""
    return value_bytes(collective.operand) <= _SCALAR_BYTES


def early_scalars_first(ops: Sequence[Operation], inner: Sequence[CollectiveOp]) -> list[Operation]:
    """
    Return `ops` with the producers of scalar operands of collectives moved to the front, if these are few ops.

    The count of labels, which depends on the batch alone, is then reduced while forward runs.
    """
    early = {op for collective in inner for op in _ancestors_of_scalar(collective)}
    return sorted(ops, key=lambda op: op not in early)


def _ancestors_of_scalar(collective: CollectiveOp) -> set[Operation]:
    """Return the ops behind a scalar operand; empty if they are many, or if they include matrix products."""
    ancestors, pending = set[Operation](), list(sources(collective))
    if not is_number(collective):
        return set()
    while pending:
        op = pending.pop()
        if not isinstance(op, ComputeOp) or is_contraction(op) or len(ancestors) == _FEW_OPS:
            return set()
        ancestors.add(op)
        pending += [source for source in sources(op) if source not in ancestors]
    return ancestors


def operands_first(ops: Sequence[Operation], inner: Sequence[CollectiveOp]) -> list[Operation]:
    """
    Return `ops` with the ops that a collective needs moved in front of the other ops within a window before it.

    In backward, weight gradients are then computed while the gradient of the input is reduced (Megatron-LM). The ops
    that all parts of one value need (`chunk-collectives`) move together, so that there is also work for the last part.
    The windows of two collectives do not overlap.
    """
    ordered, begin = list(ops), 0
    position = {op: index for index, op in enumerate(ordered)}
    for collective in inner:
        end = position[collective]
        begin = max(begin, end - WINDOW)
        window = ordered[begin:end]
        within = set(window)
        together = (collective, *parts_of_one(collective))
        needed = set[Operation]().union(*(_ancestors_within(part, within) for part in together))
        ordered[begin:end] = sorted(window, key=lambda op, needed=needed: op not in needed)
        begin = end + 1
    return ordered


def parts_of_one(collective: CollectiveOp) -> set[CollectiveOp]:
    """Return the other collectives on parts of the same value, which are sliced from it or joined into it."""
    candidates: set[Operation] = set()
    for user in (use.operation for use in collective.result.uses):
        if isinstance(user, AtenOp) and user.overload == "cat":
            candidates.update(sources(user))
    cut = collective.operand.op if isinstance(collective.operand, OpResult) else None
    if isinstance(cut, AtenOp) and cut.overload == "slice.Tensor":
        slices = [use.operation for use in cut.args[0].uses]
        candidates.update(use.operation for op in slices for result in op.results for use in result.uses)
    same = (op for op in candidates if isinstance(op, CollectiveOp) and op is not collective)
    return {op for op in same if op.KIND is collective.KIND}


def _ancestors_within(op: Operation, window: set[Operation]) -> set[Operation]:
    ancestors, pending = set[Operation](), [op]
    while pending:
        for source in sources(pending.pop()):
            if source in window and source not in ancestors:
                ancestors.add(source)
                pending.append(source)
    return ancestors
