"""Sort the rows that share a device together again, after `sort-within-rows` took them apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from ..dialects.aten import AtenOp
from ..dialects.mesh_ops import find_mesh
from ..dialects.sharding_attrs import ShardingAttr
from ..dialects.step import WORKING, attribute_of
from ..ir.sharding import Sharding, even_offsets
from ..ir.signatures import Signature
from .errors import fail
from .step.list_regrouping import LIST_OPS, count_of, is_view, list_ops_of, regroup, signature_of
from .step.requirements import require_no_resharding
from .step.step_view import step_functions


@dataclass(frozen=True)
class SortAcrossRowsPass(ModulePass):
    """
    Let the rows of the batch that are on a device at one time sort their elements together again.

    For `sort-within-rows` each row of the batch has a list of its own, which any strategy may divide. Once it is known
    into how many parts, over devices and over time, the batch is divided, one list for each part will do: the sort that
    the model has, where nothing is divided. A device then has the tokens of an expert in one place, and grouped
    products need not join lists.

    Where rows are shared unevenly, or the elements of a row are divided, each row keeps its own.

    Requires: signatures (`search-strategy`), and the axis of the parts where the batch is split (`split-batch`).
    Ensures: what the step computes is the same but for the order in which sums are taken; signatures stay.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%keys: tensor<8x6xi64> {train.batch = "0"}) -> tensor<48xi64> {
      %sorted, %places = aten.sort %keys {dim = 1 : i64, train.by_row,
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>}
        : (tensor<8x6xi64>) -> (tensor<8x6xi64>, tensor<8x6xi64>)
      %list = aten.view %sorted {size = [48 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}])>}
        : (tensor<8x6xi64>) -> tensor<48xi64>
      func.return %list : tensor<48xi64>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%keys: tensor<8x6xi64> {train.batch = "0"}) -> tensor<48xi64> {
      %keys.by_part = aten.view %keys {size = [2 : i64, 24 : i64],
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<8x6xi64>) -> tensor<2x24xi64>
      %sorted, %places = aten.sort %keys.by_part {dim = 1 : i64, train.by_row,
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>}
        : (tensor<2x24xi64>) -> (tensor<2x24xi64>, tensor<2x24xi64>)
      %list = aten.view %sorted {size = [48 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}])>}
        : (tensor<2x24xi64>) -> tensor<48xi64>
      func.return %list : tensor<48xi64>
    }
    ```

    Source: dropless mixtures: Gale et al., MegaBlocks (2022), 4, where a device sorts the tokens that it has.
    """

    name = "sort-across-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Join the lists of every step function of the module."""
        for func in step_functions(op):
            listed = list_ops_of(func)
            rows = count_of(listed)
            if rows is None:
                continue
            require_no_resharding(func, self.name)
            lists = _parts(listed, rows)
            if lists is not None and lists < rows:
                regroup(func, lists)


def _parts(listed: Sequence[AtenOp], rows: int) -> int | None:
    """
    The least number of lists that all shardings of lists divide; None where rows of the batch have to keep theirs.
    """
    found = 1
    for op in listed:
        for given, spread in _spreads(op):
            first, second = spread.dims[0], spread.dims[1]
            parts = find_mesh(op, given).parts(first.axes)
            is_even = first.offsets is None or first.offsets == even_offsets(rows, parts)
            if second.axes or not is_even or rows % parts:
                return None
            found = math.lcm(found, parts)
    return found if rows % found == 0 else None


def _spreads(op: AtenOp) -> Iterator[tuple[str, Sharding]]:
    """The shardings of lists, each with its mesh: those of a list op, of working copies, and of views."""
    listed = LIST_OPS[op.overload]
    name, given = _signature(op)
    yield from ((name, given.operands[i]) for i in listed.operands)
    yield from ((name, given.results[i]) for i in listed.results)
    for i in listed.results:
        if isinstance(copy := attribute_of(op.outs[i], WORKING), ShardingAttr):
            yield copy.data.mesh, copy.sharding
        for use in op.outs[i].uses:
            if is_view(use.operation):
                other, signature = _signature(use.operation)
                yield other, signature.operands[0]
    for i in listed.operands:
        made = op.args[i].owner
        if isinstance(made, Operation) and is_view(made):
            other, signature = _signature(made)
            yield other, signature.results[0]


def _signature(op: Operation) -> tuple[str, Signature]:
    if (given := signature_of(op)) is None:
        fail(op, "has no signature; run search-strategy before sort-across-rows")
    return given.data.mesh, given.signature
