"""The ops that a temporal axis repeats: its loop, and the ops before and after the loop."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region

from ...dialects.pipe import FragmentOp, YieldOp
from ...dialects.placed import parts_of, sharding_of
from ...dialects.spmd import CollectiveOp, FreeOp
from ...ir.mesh import AxisKind, Mesh
from ...ir.sharding import Sharding
from ..errors import fail
from .step_view import value_label


@dataclass(frozen=True)
class LoopOps:
    """The ops of a step by their place relative to a loop, each list in program order; the terminator is excluded."""

    before: Sequence[Operation]
    inside: Sequence[Operation]
    after: Sequence[Operation]


def temporal_axis(func: FuncOp, mesh: Mesh, wanted: str | None) -> str:
    """Return the temporal axis called `wanted`, or the only one not unrolled yet; OpFailure if there is none."""
    unrolled = {axis for op in func.body.block.ops for axis in parts_of(op)}
    candidates = [a.name for a in mesh.axes if a.kind is AxisKind.TEMPORAL and a.name not in unrolled]
    if wanted is None and len(candidates) == 1:
        return candidates[0]
    if wanted is None or wanted not in candidates:
        names = ", ".join(f'"{name}"' for name in candidates) or "none"
        asked = f'a temporal axis "{wanted}"' if wanted else "one temporal axis, or the name of one"
        fail(func, f"expected {asked}; the temporal axes of mesh {mesh} are: {names}; run split-batch first")
    return wanted


def communicates(op: Operation, mesh: Mesh) -> bool:
    """Return whether `op` sends data between devices; a sum over a temporal axis is local."""
    if not isinstance(op, CollectiveOp) or op.KIND.is_local:
        return False
    axes = {axis for listed in op.axes.data for axis in listed}
    return any(axis.name in axes and axis.size > 1 for axis in mesh.spatial)


def is_sum_over(op: Operation, axis: str) -> bool:
    """Return whether `op` computes the sum, or another reduction, of the micro-batches of the temporal `axis`."""
    return (
        isinstance(op, CollectiveOp) and axis in sharding_of(op.operand).partial_axes and not _speaks(op.sharding, axis)
    )


def is_in_loop(op: Operation, axis: str) -> bool:
    """Return whether `op` is micro-batched along `axis`."""
    values = (value for value in (*op.operands, *op.results) if isinstance(value.type, TensorType))
    return not is_sum_over(op, axis) and any(_speaks(sharding_of(value), axis) for value in values)


def _speaks(sharding: Sharding, axis: str) -> bool:
    return axis in sharding.partial_axes or axis in sharding.split_axes


def find_loop(func: FuncOp, axis: str, added: AbstractSet[Operation] = frozenset()) -> LoopOps:
    """
    Return the ops of `func` before, inside and after the loop over `axis`.

    Ops that the loop needs, and ops in front of the whole loop, come before it. Raises OpFailure at an op of the loop
    that needs a sum over the axis.

    Args:
        added: ops that are inside the loop, although they are not micro-batched.
    """
    ops = [op for op in func.body.block.ops if not isinstance(op, FreeOp) and op is not func.body.block.last_op]
    inside = [op for op in ops if op in added or is_in_loop(op, axis)]
    within, first = set(inside), inside[0] if inside else None
    needed = {op for op in ops[: ops.index(first)] if op not in within} if first is not None else set(ops)
    pending = [*inside, *needed]
    while pending:
        for value in pending.pop().operands:
            if isinstance(value.owner, Operation) and value.owner not in within and value.owner not in needed:
                needed.add(value.owner)
                pending.append(value.owner)
    for op in ops:
        if op in needed and any(value.owner in within for value in op.operands):
            user = next(user for user in inside if _depends(user, op))
            fail(
                user,
                f'it needs {value_label(op.results[0])}, computed from all parts along "{axis}", for each of them; '
                "only an unrolled axis can wait for it there: split-batch{parts=2 unrolled=true}, then duplex",
            )
    rest = [op for op in ops if op not in within and op not in needed]
    return LoopOps([op for op in ops if op in needed], inside, rest)


def _depends(user: Operation, op: Operation) -> bool:
    pending, seen = [user], set[Operation]()
    while pending:
        for value in pending.pop().operands:
            if value.owner is op:
                return True
            if isinstance(value.owner, Operation) and value.owner not in seen:
                seen.add(value.owner)
                pending.append(value.owner)
    return False


def fragment_of(label: str, axis: str, ops: Sequence[Operation], stage: int | None = None) -> FragmentOp:
    """Move ops into a new fragment, whose results are the values that other ops use, and return the fragment."""
    within = set(ops)
    results = [result for op in ops for result in op.results]
    used = [value for value in results if any(use.operation not in within for use in value.uses)]
    for op in ops:
        op.detach()
    body = Region(Block([*ops, YieldOp(used)]))
    fragment = FragmentOp(label, axis, body, [value.type for value in used], stage)
    fragment.location = ops[0].location
    for value, result in zip(used, fragment.outs, strict=True):
        result.name_hint = value.name_hint
        value.replace_uses_with_if(result, lambda use: use.operation.parent is not body.block)
    return fragment
