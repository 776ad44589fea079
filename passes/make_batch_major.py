"""Reorder the elements of values so that the batch comes first in every merged dim."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from ..dialects import train
from ..dialects.aten import AtenOp
from ..dialects.compute import ComputeOp
from ..ir.mesh import Mesh
from ..ir.ops.normalisation import BATCH_NORMS
from .step.batch_order import PERMUTATIONS, BatchOrder, depends_on_place, hint_of, order_of
from .step.batch_places import factor_of, place_of, stands_alone
from .step.batch_rewrites import rewrite
from .step.requirements import require_undecided
from .step.step_view import StepView, batch_rows, step_functions


@dataclass(frozen=True)
class MakeBatchMajorPass(ModulePass):
    """
    Put the rows of the batch first in every dim that they are merged into, so that the dim can be split along them.

    Only the leading factor of a dim can be split. Attention with time before the batch merges both, `[time, batch,
    width]` to `[time * batch, width]`, for its matrix products; the gradient of queries, keys and values that are
    unpacked from one tensor concatenates three batches. The pass turns such a view into a view of the permuted value,
    `[batch * time, width]`. Ops that treat all elements of that dim equally then compute the same rows in another
    order. A later view that divides the dim is followed by the inverse permutation. Concatenations, slices and
    repetitions along the batch work on a separate dim. An op that depends on the order (a cumulative sum, for example)
    gets the value in its own order; random numbers are drawn for each element as before.

    Requires: a step without signatures; run it before `search-strategy`.
    Ensures: the step computes the same values, up to the order of summation.

    Before:
    ```mlir
    func.func @step(%x: tensor<8x3x4xf32> {train.batch = "0"}, %w: tensor<4x6xf32>) -> tensor<8x3x6xf32> {
      %x.t = aten.transpose.int %x {dim0 = 0 : i64, dim1 = 1 : i64} : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
      %rows = aten.view %x.t {size = [24 : i64, 4 : i64]} : (tensor<3x8x4xf32>) -> tensor<24x4xf32>
      %h = aten.mm %rows, %w : (tensor<24x4xf32>, tensor<4x6xf32>) -> tensor<24x6xf32>
      %y = aten.view %h {size = [3 : i64, 8 : i64, 6 : i64]} : (tensor<24x6xf32>) -> tensor<3x8x6xf32>
      %y.t = aten.transpose.int %y {dim0 = 0 : i64, dim1 = 1 : i64} : (tensor<3x8x6xf32>) -> tensor<8x3x6xf32>
      func.return %y.t : tensor<8x3x6xf32>
    }
    ```

    After:
    ```mlir
    func.func @step(%x: tensor<8x3x4xf32> {train.batch = "0"}, %w: tensor<4x6xf32>) -> tensor<8x3x6xf32> {
      %rows = aten.view %x {size = [24 : i64, 4 : i64]} : (tensor<8x3x4xf32>) -> tensor<24x4xf32>
      %h = aten.mm %rows, %w : (tensor<24x4xf32>, tensor<4x6xf32>) -> tensor<24x6xf32>
      %y.apart = aten.view %h {size = [8 : i64, 3 : i64, 6 : i64]} : (tensor<24x6xf32>) -> tensor<8x3x6xf32>
      func.return %y.apart : tensor<8x3x6xf32>
    }
    ```

    Source: Shardy's factors of a dim, where only the major factor can be split; time-major and batch-major layouts.
    """

    name = "make-batch-major"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every step function of the module that has a batch."""
        for func in step_functions(op):
            require_undecided(func, self.name)
            view = StepView(func, Mesh(()))
            rows = batch_rows(view.inputs)
            if rows is not None and rows > 1:
                _make_batch_major(func, BatchOrder(func, view.inputs, rows))


def _make_batch_major(func: FuncOp, order: BatchOrder) -> None:
    for op in list(func.body.block.ops):
        if not isinstance(op, ComputeOp) or train.is_update(op):
            order.give_in_order(op)
        elif any(value in order.places for value in op.args) and not rewrite(order, op):
            _follow(order, op)
    order.erase_unused()


def _follow(order: BatchOrder, op: ComputeOp) -> None:
    """Let an op work on batch-major values if it treats all elements of their dims equally, or restore their order."""
    rule, moves = op.rule(), not order.moved.isdisjoint(op.args)
    placed = {i: order.places[value] for i, value in enumerate(op.args) if value in order.places}
    factors = {factor_of(rule, i, place) for i, place in placed.items()}
    location = factors.pop() if len(factors) == 1 else None
    if location is None or (moves and not _is_alike_for_all(op, location[0])):
        order.give_in_order(op)
        return
    factor, within = location
    if moves:
        for index in range(len(op.args)):
            if (place := place_of(rule.operands[index], rule, factor, within)) is not None:
                order.give_batch_major(op, index, place)
    for index, value in enumerate(op.outs):
        place = place_of(rule.results[index], rule, factor, within)
        # A value in its own order cannot be split at a place behind another factor, so the place is not recorded.
        if place is not None and (moves or not place.is_merged):
            order.note(value, place, moved=moves)
    if isinstance(op, AtenOp) and op.overload in PERMUTATIONS and order.is_made(op.args[0], PERMUTATIONS):
        order.replace(op, [order.permuted(op.args[0], order_of(op), op, hint_of(op.outs[0]))])


def _is_alike_for_all(op: ComputeOp, factor: str) -> bool:
    """Return whether an op computes the same for the elements of a factor in any order."""
    rule = op.rule()
    apart = factor in rule.splittable() and factor not in rule.indexed and not depends_on_place(op)
    return stands_alone(rule, factor) and (apart or op.overload in BATCH_NORMS)
