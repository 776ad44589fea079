"""Split all collectives into start and wait, far apart and in buckets: the most that overlap passes may change."""

from collections.abc import Hashable

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from shardwright.dialects.compute import dtype_of
from shardwright.dialects.spmd import AllReduceOp, CollectiveOp, StartOp, WaitOp
from shardwright.dialects.step import sharding_of


def split_collectives(func: FuncOp) -> int:
    """
    Replace every collective that communicates by a start, and a wait right before the first use of its result.

    All-reduces over the same axes that would be in flight at the same time start together.
    Return the number of starts.
    """
    buckets: dict[Hashable, list[CollectiveOp]] = {}
    starts = 0
    for op in list(func.body.block.ops):
        for key, members in list(buckets.items()):
            if any(value in op.operands for member in members for value in member.results):
                starts += _split(buckets.pop(key), op)
        if isinstance(op, CollectiveOp) and not op.KIND.is_local:
            buckets.setdefault(_key(op), []).append(op)
    assert not buckets, "a collective's result is used, if only by the return"
    return starts


def _key(op: CollectiveOp) -> Hashable:
    if not isinstance(op, AllReduceOp):
        return op
    reductions = {kind for axis, kind in sharding_of(op.operand).partial if axis in op.axes.data[0]}
    return op.axes, dtype_of(op.operand), frozenset(reductions)


def _split(members: list[CollectiveOp], user: Operation) -> int:
    """Put one start at the last of `members`, and one wait before `user`."""
    block = user.parent_block()
    assert block is not None
    last = members[-1]
    start = StartOp(last.KIND, [m.operand for m in members], [m.out_sharding for m in members])
    wait = WaitOp(start)
    block.insert_op_before(start, last)
    block.insert_op_before(wait, user)
    for member, result in zip(members, wait.outs, strict=True):
        result.name_hint = member.result.name_hint
        member.result.replace_all_uses_with(result)
        member.detach()
        member.erase()
    return 1
