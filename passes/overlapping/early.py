"""Reordering a step's ops, so that operands of collectives are computed earlier and other work hides these."""

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
"""Among how many ops in a row some may come earlier; see `operands_first`."""


def sources(op: Operation) -> Iterator[Operation]:
    """The ops that make the operands of `op`."""
    return (value.op for value in values_read(op) if isinstance(value, OpResult))


def is_number(collective: CollectiveOp) -> bool:
    """Whether what a collective carries is no more than a few numbers, which cost no memory to keep."""
    return value_bytes(collective.operand) <= _SCALAR_BYTES


def early_scalars_first(ops: Sequence[Operation], inner: Sequence[CollectiveOp]) -> list[Operation]:
    """
    `ops`, but what makes the operands of collectives on numbers comes first, where it takes few ops.

    So the count of labels, which depends on the batch alone, is reduced while the forward pass runs.
    """
    early = {op for collective in inner for op in _ancestors_of_scalar(collective)}
    return sorted(ops, key=lambda op: op not in early)


def _ancestors_of_scalar(collective: CollectiveOp) -> set[Operation]:
    """The ops from which a number is made; none where they are many, or do more than an op per element."""
    found, pending = set[Operation](), list(sources(collective))
    if not is_number(collective):
        return set()
    while pending:
        op = pending.pop()
        if not isinstance(op, ComputeOp) or is_contraction(op) or len(found) == _FEW_OPS:
            return set()
        found.add(op)
        pending += [source for source in sources(op) if source not in found]
    return found


def operands_first(ops: Sequence[Operation], inner: Sequence[CollectiveOp]) -> list[Operation]:
    """
    `ops`, but what a collective does not need comes after what it needs, within some ops before it.

    In a backward pass, the gradients of weights are computed while that of the input is reduced (Megatron-LM). What the
    parts of one value need (`chunk-collectives`) comes first together, so that there is work for the last part, too.
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
        needed = set[Operation]().union(*(_ancestors_within(each, within) for each in together))
        ordered[begin:end] = sorted(window, key=lambda op, needed=needed: op not in needed)
        begin = end + 1
    return ordered


def parts_of_one(collective: CollectiveOp) -> set[CollectiveOp]:
    """The other collectives that bring parts of the same value: which are put together, or were cut from one."""
    found: set[Operation] = set()
    for user in (use.operation for use in collective.result.uses):
        if isinstance(user, AtenOp) and user.overload == "cat":
            found.update(sources(user))
    cut = collective.operand.op if isinstance(collective.operand, OpResult) else None
    if isinstance(cut, AtenOp) and cut.overload == "slice.Tensor":
        slices = [use.operation for use in cut.args[0].uses]
        found.update(use.operation for op in slices for result in op.results for use in result.uses)
    same = (op for op in found if isinstance(op, CollectiveOp) and op is not collective)
    return {op for op in same if op.KIND is collective.KIND}


def _ancestors_within(op: Operation, window: set[Operation]) -> set[Operation]:
    """The ops of `window` that `op` depends on, through ops of the window."""
    found, pending = set[Operation](), [op]
    while pending:
        for source in sources(pending.pop()):
            if source in window and source not in found:
                found.add(source)
                pending.append(source)
    return found
