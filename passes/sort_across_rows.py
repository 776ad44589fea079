"""Join the sorts of rows that share a device, which `sort-within-rows` separated."""

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
    Let the rows of the batch that are on a device at the same time sort their elements together.

    After `sort-within-rows` each row of the batch has its own list, which any strategy may divide. Once the number of
    parts of the batch is known, over devices and over time, one list for each part suffices; an undivided batch has the
    sort of the model. A device then has the tokens of an expert in one place, and grouped products need not join lists.

    If rows are shared unevenly, or the elements of a row are divided, each row keeps its own list.

    Requires: signatures (`search-strategy`), and the temporal axis if the batch is split (`split-batch`).
    Ensures: the step computes the same values, up to the order of summation; signatures stay.

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

    Source: dropless mixtures: Gale et al., MegaBlocks (2022), 4, where a device sorts its own tokens.
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
    """Return the least number of lists that all shardings of lists divide, or None if rows must keep their lists."""
    lists = 1
    for op in listed:
        for mesh_name, spread in _spreads(op):
            first, second = spread.dims[0], spread.dims[1]
            parts = find_mesh(op, mesh_name).parts(first.axes)
            is_even = first.offsets is None or first.offsets == even_offsets(rows, parts)
            if second.axes or not is_even or rows % parts:
                return None
            lists = math.lcm(lists, parts)
    return lists if rows % lists == 0 else None


def _spreads(op: AtenOp) -> Iterator[tuple[str, Sharding]]:
    """Yield the shardings of lists with the names of their meshes: in a list op, its working copies and its views."""
    listed = LIST_OPS[op.overload]
    name, own = _signature(op)
    yield from ((name, own.operands[i]) for i in listed.operands)
    yield from ((name, own.results[i]) for i in listed.results)
    for i in listed.results:
        if isinstance(copy := attribute_of(op.outs[i], WORKING), ShardingAttr):
            yield copy.data.mesh, copy.sharding
        for use in op.outs[i].uses:
            if is_view(use.operation):
                other, signature = _signature(use.operation)
                yield other, signature.operands[0]
    for i in listed.operands:
        producer = op.args[i].owner
        if isinstance(producer, Operation) and is_view(producer):
            other, signature = _signature(producer)
            yield other, signature.results[0]


def _signature(op: Operation) -> tuple[str, Signature]:
    if (signed := signature_of(op)) is None:
        fail(op, "has no signature; run search-strategy before sort-across-rows")
    return signed.data.mesh, signed.signature
