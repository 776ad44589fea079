"""The attributes of a step function in which passes write what they decide."""

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
"""On an item of the batch: its first dim does not count rows, though it may be of the same size."""

WORKING = "spmd.working"
"""
On an argument: the sharding of the copy that its users share. On an op: the same per result, unit for none.
"""

REGATHER = "spmd.regather"
"""
On an argument with a working copy: whether the copy is made again for backward instead of kept from forward.
On an op: the same per result.
"""

MEMORY_SAVING = "spmd.memory_saving"
"""
On a function in memory-saving mode: from forward to backward only the home or the working copy of a value is kept;
its other shardings are produced again.
"""

MEMORY_BUDGET = "spmd.memory_budget"
"""
On a function: the memory budget of the next search, in bytes per device, where later passes were found to need the
rest.
"""

SEARCH = "spmd.search"
"""On a function: what the search reports (algorithm, cost and lower bound in seconds, ...)."""

PLAN = "spmd.plan"
"""
On a function: what search-plan reports: the chosen candidate, the seconds of its step, and what became of all
candidates.
"""

CHOSEN = "spmd.chosen"
"""
On a function: the candidate that search-plan chose, with all that is needed to make it again: layout, choice, pins, and
the cluster's own mesh.
"""

RUNNERS_UP = "spmd.runners_up"
"""
On a function: the fastest candidate of each other kind that search-plan found, the fastest first, as CHOSEN.
"""

BALANCE = "spmd.balance"
"""
On a function: what balance-ratios reports (seconds of a step before and after; `whole`: ops that it could not divide).
"""

COMPILED = "train.compiled"
"""
On a function: its computation between collectives will be compiled, so that ops that go over elements and follow one
another cost what one kernel does.
"""

BACKWARD = "train.backward"
"""On an op: it belongs to the backward pass."""

CHECKPOINT = "train.checkpoint"
"""On an op of forward: the number of the region of the model whose results are to be computed again for backward."""

RECOMPUTED = "train.recomputed"
"""On an op of backward: it does again what an op of forward did (`recompute`)."""

BY_ROW = "train.by_row"
"""On an op of `sort-within-rows`: it works on a list of each row of the batch, which might be one of several rows."""


def demanded_sharding(op: ComputeOp, index: int) -> Sharding | None:
    """The sharding that an op demands of its operand `index`; None where nothing is decided."""
    return op.signature.operands[index] if op.signature is not None else None


def working_of(value: SSAValue) -> Sharding | None:
    """The working placement of a value, where it has one."""
    given = attribute_of(value, WORKING)
    return given.sharding if isinstance(given, ShardingAttr) else None


def is_regathered(value: SSAValue) -> bool:
    """Whether the working copy of a value is made again for backward."""
    given = attribute_of(value, REGATHER)
    return isinstance(given, IntegerAttr) and bool(given.value.data)


def attribute_of(value: SSAValue, name: str) -> Attribute | None:
    """An attribute of an argument, or the entry for one result in an attribute of its op."""
    if isinstance(value, BlockArgument):
        return argument_attribute(value, name)
    entries = entries_of(value.op.attributes.get(name)) if isinstance(value, OpResult) else None
    return entries[value.index] if entries is not None and isinstance(value, OpResult) else None


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
) -> ArrayAttr[DictionaryAttr] | None:
    entries = list(listed.data) if listed is not None else [DictionaryAttr({})] * count
    merged = ({**entry.data, **added.get(i, {})} for i, entry in enumerate(entries))
    left = [DictionaryAttr({k: v for k, v in entry.items() if v is not None}) for entry in merged]
    # As it would be read again: where no entry says anything, nothing is printed.
    return ArrayAttr(left) if any(entry.data for entry in left) else None
