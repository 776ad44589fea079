"""The attributes by which passes tell one another what has been decided for a step function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, IntegerAttr, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue

from ..ir.sharding import Sharding
from .compute import ComputeOp, shape_of
from .sharding_attrs import ShardingAttr
from .spmd import ReshardingOp, WaitOp

SHARDING = "spmd.sharding"
"""
On an argument: its home, the sharding in which it is kept between steps. On a result: the sharding returned.
"""

WORKING = "spmd.working"
"""
On an argument: the sharding of the copy that its users share. On an op: the same per result, unit for none.
"""

REGATHER = "spmd.regather"
"""On an argument with a working copy: whether the copy is made again for backward instead of kept from forward. On an
op: the same per result."""

SEARCH = "spmd.search"
"""On a function: what the search reports (algorithm, cost and lower bound in seconds, ...)."""

BACKWARD = "train.backward"
"""On an op: it belongs to the backward pass."""


def argument_attribute(argument: BlockArgument, name: str) -> Attribute | None:
    """An attribute of a function's argument, or None."""
    func = argument.block.parent_op()
    if not isinstance(func, FuncOp) or func.arg_attrs is None or argument.index >= len(func.arg_attrs):
        return None
    return func.arg_attrs.data[argument.index].data.get(name)


def sharding_of(value: SSAValue) -> Sharding:
    """The sharding that a value has where it is defined; replicated where nothing says otherwise."""
    if isinstance(value, BlockArgument):
        given = argument_attribute(value, SHARDING)
    elif isinstance(value, OpResult) and isinstance(value.op, ReshardingOp):
        given = value.op.out_sharding
    elif isinstance(value, OpResult) and isinstance(value.op, WaitOp):
        given = value.op.start.out_shardings.data[value.index]
    elif isinstance(value, OpResult) and isinstance(value.op, ComputeOp) and value.op.signature is not None:
        return value.op.signature.results[value.index]
    else:
        given = None
    return given.sharding if isinstance(given, ShardingAttr) else Sharding.replicated(len(shape_of(value)))


def demanded_sharding(op: ComputeOp, index: int) -> Sharding | None:
    """The sharding that an op demands of its operand `index`; None where nothing is decided."""
    return op.signature.operands[index] if op.signature is not None else None


def working_of(value: SSAValue) -> Sharding | None:
    """The working placement of a value, where it has one."""
    given = _of_value(value, WORKING)
    return given.sharding if isinstance(given, ShardingAttr) else None


def is_regathered(value: SSAValue) -> bool:
    """Whether the working copy of a value is made again for backward."""
    given = _of_value(value, REGATHER)
    return isinstance(given, IntegerAttr) and bool(given.value.data)


def _of_value(value: SSAValue, name: str) -> Attribute | None:
    """An attribute of an argument, or the entry for one result in an attribute of its op."""
    if isinstance(value, BlockArgument):
        return argument_attribute(value, name)
    listed = value.op.attributes.get(name) if isinstance(value, OpResult) else None
    return listed.data[value.index] if isinstance(listed, ArrayAttr) and isinstance(value, OpResult) else None


def set_working_copies(func: FuncOp, mesh: str, copies: Mapping[SSAValue, tuple[Sharding, bool]]) -> None:
    """Write the working placements of values, each with whether it is made again for backward."""
    arguments: dict[int, dict[str, Attribute | None]] = {}
    results: dict[Operation, dict[int, tuple[Sharding, bool]]] = {}
    for value, copy in copies.items():
        if isinstance(value, BlockArgument):
            arguments[value.index] = {WORKING: ShardingAttr.of(mesh, copy[0])}
            arguments[value.index] |= {REGATHER: BoolAttr.from_bool(True)} if copy[1] else {}
        elif isinstance(value, OpResult):
            results.setdefault(value.op, {})[value.index] = copy
    merge_argument_attributes(func, arguments)
    for op, by_index in results.items():
        count = len(op.results)
        forms = [ShardingAttr.of(mesh, by_index[i][0]) if i in by_index else UnitAttr() for i in range(count)]
        op.attributes[WORKING] = ArrayAttr(forms)
        if any(again for _, again in by_index.values()):
            flags = [BoolAttr.from_bool(i in by_index and by_index[i][1]) for i in range(count)]
            op.attributes[REGATHER] = ArrayAttr(flags)


def merge_argument_attributes(func: FuncOp, added: Mapping[int, Mapping[str, Attribute | None]]) -> None:
    """Set attributes of a function's arguments, by index; None removes one."""
    func.arg_attrs = _merged(func.arg_attrs, len(func.body.block.args), added)


def merge_result_attributes(func: FuncOp, added: Mapping[int, Mapping[str, Attribute | None]]) -> None:
    """Set attributes of a function's results, by index; None removes one."""
    func.res_attrs = _merged(func.res_attrs, len(func.function_type.outputs), added)


def _merged(
    listed: ArrayAttr[DictionaryAttr] | None, count: int, added: Mapping[int, Mapping[str, Attribute | None]]
) -> ArrayAttr[DictionaryAttr]:
    entries = list(listed.data) if listed is not None else [DictionaryAttr({})] * count
    merged = ({**entry.data, **added.get(i, {})} for i, entry in enumerate(entries))
    return ArrayAttr([DictionaryAttr({k: v for k, v in entry.items() if v is not None}) for entry in merged])
