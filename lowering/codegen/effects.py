"""What each op of a lowered step does with memory, for the analysis of ownership."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import train
from ...dialects.aten import AtenOp, OpaqueOp
from ...dialects.compute import python_value
from ...dialects.pipe import FragmentOp
from ...dialects.spmd import AccumulateOp, AllReduceOp, CollectiveOp, FreeOp, StartOp, WaitOp
from ...ir.collectives import CollectiveKind
from ...ir.mesh import Mesh
from .ownership import Effect, sole_owners, writable_operands

IN_PLACE = {"aten.add.Tensor": "aten.add_.Tensor", "foreach": "foreach_"}
"""Calls that can write into their first operand -> those that do."""


def overwritten_operands(
    ops: Sequence[Operation],
    effects: Sequence[Effect],
    arguments: Sequence[SSAValue],
    replaced: Sequence[SSAValue],
    returned: Sequence[SSAValue],
) -> dict[Operation, dict[int, int]]:
    """
    Per op of a function, the operands whose memory it may take, each with the result that it takes it for.

    Args:
        effects: what each op does with memory.
        arguments: what the function reads and does not make.
        replaced: those of which a result takes the place: only their memory is free after their last use.
        returned: what it gives, or hands to somebody else.
    """
    writable = writable_operands(effects, arguments, replaced, returned)
    found: dict[Operation, dict[int, int]] = {}
    for op, effect, taken in zip(ops, effects, writable, strict=True):
        # torch's functions of lists write over all members or none.
        whole = not isinstance(op, train.ForeachOp) or effect.updates or len(taken) == op.count
        found[op] = {operand: result for operand, result in effect.overwrites if operand in taken and whole}
    return found


def summed_in_place(fragment: FragmentOp, mesh: Mesh) -> Sequence[bool]:
    """Per result of a fragment, whether the parts after the first can be added to the memory of what it yields."""
    *ops, done = fragment.body.block.ops
    alone = sole_owners([effect_of(op, mesh) for op in ops], fragment.captured, done.operands)
    return [value in alone and not _is_repeated(value) for value in done.operands]


def _is_repeated(value: SSAValue) -> bool:
    """Whether elements of `value` may share memory, by an `expand`."""
    op = value.owner
    if not isinstance(op, AtenOp) or not op.spec.view:
        return False
    return op.overload == "expand" or _is_repeated(op.args[0])


def replaced_arguments(func: FuncOp) -> Sequence[int]:
    """The indices of the arguments whose new value is a result."""
    return [python_value(role[train.UPDATES]) for role in roles_of_results(func) if train.UPDATES in role]


def roles_of_arguments(func: FuncOp) -> Sequence[Mapping[str, Attribute]]:
    """The attributes of each argument."""
    return _dictionaries(func.arg_attrs, len(func.body.block.args))


def roles_of_results(func: FuncOp) -> Sequence[Mapping[str, Attribute]]:
    """The attributes of each result."""
    return _dictionaries(func.res_attrs, len(func.function_type.outputs))


def _dictionaries(attributes: ArrayAttr[DictionaryAttr] | None, count: int) -> Sequence[Mapping[str, Attribute]]:
    return [entry.data for entry in attributes] if attributes is not None else [{}] * count


def effect_of(op: Operation, mesh: Mesh) -> Effect:
    """What `op` does with memory; an op of no kind below reads its operands and makes its results."""
    match op:
        case AtenOp():
            overwrites = ((0, 0),) if f"aten.{op.overload}" in IN_PLACE and _alike(op) else ()
            return _effect(op, shares=1 if op.spec.view else 0, overwrites=overwrites)
        case OpaqueOp():
            return _effect(op, shares=len(op.operands))
        case train.SgdOp() | train.AdamBaseOp() | train.AssignOp():
            return _effect(op, overwrites=train.overwritten_by_update(op), updates=True)
        case train.ForeachOp() if written := train.overwritten_by_update(op):
            return _effect(op, overwrites=written, updates=True)
        case train.ForeachOp():
            return _effect(op, overwrites=tuple((at, at) for at in range(op.count)))
        case CollectiveOp():
            # The communicator hands on what a group of one holds; a rank sums over time what is its own.
            spatial = {axis.name for axis in mesh.spatial}
            axes = [axis for axes in op.axes.data for axis in axes]
            alone = op.KIND.is_local or (mesh.parts(axes) == 1 and spatial.issuperset(axes))
            return _effect(op, shares=int(alone), overwrites=((0, 0),) if isinstance(op, AllReduceOp) else ())
        case StartOp():
            # The token stands for the operands' memory, which is in use until the wait.
            count = len(op.args)
            donated = tuple((i, 0) for i in range(count)) if op.collective is CollectiveKind.ALL_REDUCE else ()
            return _effect(op, shares=count, overwrites=donated)
        case WaitOp():
            return _effect(op, shares=int(any(axis.size == 1 for axis in mesh.spatial)))
        case FragmentOp():
            return Effect(op.captured, tuple(op.results))
        case AccumulateOp():
            return _effect(op, overwrites=() if _is_repeated(op.total) else ((0, 0),))
        case FreeOp():
            return Effect((), ())
        case _:
            return _effect(op)


def _effect(
    op: Operation,
    shares: int = 0,
    overwrites: tuple[tuple[int, int], ...] = (),
    updates: bool = False,
) -> Effect:
    """The effect of `op`, whose results may share the memory of its first `shares` operands."""
    return Effect(tuple(op.operands), tuple(op.results), tuple(range(shares)), overwrites, updates)


def _alike(op: AtenOp) -> bool:
    """Whether the first operand has the result's type and spread."""
    given = op.signature
    spread_alike = given is None or given.operands[0].dims == given.results[0].dims
    return bool(op.args) and op.args[0].type == op.outs[0].type and spread_alike
