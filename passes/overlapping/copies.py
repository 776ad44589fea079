"""Removal of gathers of values that are still alive: at the start of backward, the last parameters of forward are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from xdsl.ir import Block, Operation, OpResult, SSAValue

from ...dialects.placed import AT
from ...dialects.sharding_attrs import ShardingAttr
from ...dialects.spmd import CollectiveOp, StartOp, WaitOp
from ...ir.collectives import CollectiveKind
from .flow import is_view
from .waits import wait_of

_Copy: TypeAlias = tuple[SSAValue, ShardingAttr]
"""A value, and the sharding that it is brought into."""


def reuse_copies(block: Block) -> None:
    """
    Remove gathers from a scheduled block if a copy in the same sharding is still needed when the gather would start.

    The users of the second copy then read the first, which lives no longer than the second would have lived.
    """
    order = {op: index for index, op in enumerate(block.ops)}
    gathers = [op for op in order if isinstance(op, StartOp) and op.collective is CollectiveKind.ALL_GATHER]
    latest: dict[_Copy, OpResult] = {}
    for start in gathers:
        for arg, out, result in zip(start.args, start.out_shardings.data, wait_of(start).outs, strict=True):
            copy = _origin(arg), out
            earlier = latest.get(copy)
            if earlier is not None and _is_alive(earlier, start, order):
                result.replace_all_uses_with(earlier)
            else:
                latest[copy] = result
    for start in reversed(gathers):
        _drop_unused(start)


def _is_alive(known: OpResult, start: StartOp, order: Mapping[Operation, int]) -> bool:
    """Return whether a copy exists when `start` would be waited for, and is still needed when it would start."""
    return order[known.op] < order[wait_of(start)] and _last_use(known, order) >= order[start]


def _origin(value: SSAValue) -> SSAValue:
    """Return the value that collectives resharded into `value`, for the same micro-batch."""
    while isinstance(value, OpResult) and AT not in value.op.attributes:
        if isinstance(value.op, WaitOp):
            value = value.op.start.args[value.index]
        elif isinstance(value.op, CollectiveOp):
            value = value.op.operand
        else:
            break
    return value


def _last_use(value: SSAValue, order: Mapping[Operation, int]) -> int:
    """Return the index of the last op of the block that needs a value or a view of it."""
    last = -1
    for use in value.uses:
        op = use.operation
        while op not in order and (around := op.parent_op()) is not None:
            op = around
        if isinstance(op, StartOp):
            op = wait_of(op)
        last = max(last, order[op], *(_last_use(result, order) for result in op.results if is_view(op)))
    return last


def _drop_unused(start: StartOp) -> None:
    """Remove unused results from a gather, and the gather if all its results are unused."""
    wait = wait_of(start)
    used = [index for index, result in enumerate(wait.outs) if result.uses]
    if len(used) == len(wait.outs):
        return
    if used:
        shardings = [start.out_shardings.data[index] for index in used]
        method = start.method.data if start.method is not None else None
        _replace(start, wait, StartOp(start.collective, [start.args[index] for index in used], shardings, method), used)
    for half in (wait, start):
        half.detach()
        half.erase()


def _replace(start: StartOp, wait: WaitOp, new: StartOp, kept: list[int]) -> None:
    block, waiting = start.parent_block(), WaitOp(new)
    assert block is not None
    for old, half in ((start, new), (wait, waiting)):
        half.location = old.location
        half.attributes.update(old.attributes)
        block.insert_op_before(half, old)
    new.token.name_hint = start.token.name_hint
    for index, result in zip(kept, waiting.outs, strict=True):
        result.name_hint = wait.outs[index].name_hint
        wait.outs[index].replace_all_uses_with(result)
