"""The attributes of a step function that hold the decisions of passes."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, IntegerAttr, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue

from ..ir.sharding import Sharding
from .compute import ComputeOp
from .kinds import entries_of
from .placed import SHARDING as SHARDING
from .placed import argument_attribute as argument_attribute
from .placed import sharding_of as sharding_of
from .sharding_attrs import ShardingAttr

NO_ROWS = "train.no_rows"
"""On a batch item: its first dim is not the batch dim, even if it has the same size."""

WORKING = "spmd.working"
"""On an argument: the sharding of its working copy. On an op: the same per result, unit for a result without one."""

REGATHER = "spmd.regather"
"""
On an argument with a working copy: whether backward gathers the copy again instead of keeping it from forward.
On an op: the same per result.
"""

MEMORY_SAVING = "spmd.memory_saving"
"""
On a function in memory-saving mode: from forward to backward only the home or the working copy of a value is kept;
its other shardings are produced again.
"""

MEMORY_BUDGET = "spmd.memory_budget"
"""On a function: memory budget of the next search, in bytes per device, without the memory that later passes need."""

SEARCH = "spmd.search"
"""On a function: the report of the search (algorithm, cost and lower bound in seconds, ...)."""

PLAN = "spmd.plan"
"""
On a function: the report of search-plan: the chosen candidate, the seconds of its step, and the outcome of every
candidate.
"""

CHOSEN = "spmd.chosen"
"""
On a function: the candidate that search-plan chose, with everything needed to rebuild it: layout, choice, pins, and
the cluster's own mesh.
"""

RUNNERS_UP = "spmd.runners_up"
"""On a function: the fastest candidate of each other kind that search-plan found, as CHOSEN, in ascending step time."""

BALANCE = "spmd.balance"
"""On a function: the report of balance-ratios (step seconds before and after; `whole`: ops it could not divide)."""

COMPILED = "train.compiled"
"""
On a function: its computation between collectives will be compiled, so consecutive elementwise ops cost as much as
one kernel.
"""

BACKWARD = "train.backward"
"""On an op: it belongs to the backward pass."""

CHECKPOINT = "train.checkpoint"
"""On an op of forward: the number of its checkpointed region, whose results backward computes again."""

RECOMPUTED = "train.recomputed"
"""On an op of backward: it repeats an op of forward (`recompute`)."""

BY_ROW = "train.by_row"
"""On an op of `sort-within-rows`: it works on one list per row of the batch; `sort-across-rows` may join the lists."""


def demanded_sharding(op: ComputeOp, index: int) -> Sharding | None:
    """Return the sharding that an op requires of operand `index`, or None before it is decided."""
    return op.signature.operands[index] if op.signature is not None else None


def working_of(value: SSAValue) -> Sharding | None:
    """Return the sharding of a value's working copy, or None if it has none."""
    attribute = attribute_of(value, WORKING)
    return attribute.sharding if isinstance(attribute, ShardingAttr) else None


def is_regathered(value: SSAValue) -> bool:
    """Whether the working copy of a value is gathered again for backward."""
    attribute = attribute_of(value, REGATHER)
    return isinstance(attribute, IntegerAttr) and bool(attribute.value.data)


def attribute_of(value: SSAValue, name: str) -> Attribute | None:
    """Return an attribute of an argument, or a result's entry in an attribute of its op."""
    if isinstance(value, BlockArgument):
        return argument_attribute(value, name)
    entries = entries_of(value.op.attributes.get(name)) if isinstance(value, OpResult) else None
    return entries[value.index] if entries is not None and isinstance(value, OpResult) else None


def set_working_copies(func: FuncOp, mesh: str, copies: Mapping[SSAValue, tuple[Sharding, bool]]) -> None:
    """Write the working copies of values: for each, its sharding and whether backward gathers it again."""
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


def argument_attributes(func: FuncOp) -> list[Mapping[str, Attribute]]:
    """Return the attributes of each argument of a function: its role, its sharding and others."""
    return _listed(func.arg_attrs, len(func.body.block.args))


def result_attributes(func: FuncOp) -> list[Mapping[str, Attribute]]:
    """Return the attributes of each result of a function."""
    return _listed(func.res_attrs, len(func.function_type.outputs))


def _listed(attributes: ArrayAttr[DictionaryAttr] | None, count: int) -> list[Mapping[str, Attribute]]:
    return [entry.data for entry in attributes] if attributes is not None else [{}] * count


def merge_argument_attributes(func: FuncOp, added: Mapping[int, Mapping[str, Attribute | None]]) -> None:
    """Set attributes of a function's arguments, by index; the value None removes an attribute."""
    func.arg_attrs = _merged(func.arg_attrs, len(func.body.block.args), added)


def merge_result_attributes(func: FuncOp, added: Mapping[int, Mapping[str, Attribute | None]]) -> None:
    """Set attributes of a function's results, by index; the value None removes an attribute."""
    func.res_attrs = _merged(func.res_attrs, len(func.function_type.outputs), added)


def _merged(
    listed: ArrayAttr[DictionaryAttr] | None, count: int, added: Mapping[int, Mapping[str, Attribute | None]]
) -> ArrayAttr[DictionaryAttr] | None:
    left = list(listed) if listed is not None else [DictionaryAttr({})] * count
    for index, entries in added.items():
        merged = {**left[index].data, **entries}
        left[index] = DictionaryAttr({name: value for name, value in merged.items() if value is not None})
    # Like a parsed function, it has no list if all entries are empty.
    return ArrayAttr(left) if any(entry.data for entry in left) else None
