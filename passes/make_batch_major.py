"""The pass `make-batch-major`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..ir.mesh import Mesh
from .step.batch_major import BatchMajor
from .step.batch_parts import batch_rows
from .step.requirements import require_undecided
from .step.step_view import StepView, step_functions


@dataclass(frozen=True)
class MakeBatchMajorPass(ModulePass):
    """
    Put the rows of the batch first in every dim that they are merged into, so that the dim can be split along them.

    Only the leading factor of a dim can be split. Attention that works with time before the batch merges both,
    `[time, batch, width]` to `[time * batch, width]`, for its matrix products; the gradient of queries, keys and values
    that are unpacked from one tensor puts three batches end to end. Such a view becomes one of the permuted value,
    `[batch * time, width]`. Ops that treat all elements of that dim alike then compute the same rows in another order,
    up to a view that takes the dim apart, which is followed by the inverse permutation. Concatenations, slices and
    repetitions along the batch work on the dim beside it. What depends on the order (a sum up to each element, say)
    gets the value in its own order; random numbers are drawn for each element as before.

    Requires: a step without signatures; run it before `search-strategy`.
    Ensures: what the step computes is the same but for the order in which sums are taken.

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
      %y.t = aten.view %h {size = [8 : i64, 3 : i64, 6 : i64]} : (tensor<24x6xf32>) -> tensor<8x3x6xf32>
      func.return %y.t : tensor<8x3x6xf32>
    }
    ```

    Source: Shardy's factors of a dim, of which only the major one can be split; time-major and batch-major layouts.
    """

    name = "make-batch-major"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every step function of the module that has a batch."""
        for func in step_functions(op):
            require_undecided(func, self.name)
            view = StepView(func, Mesh(()))
            rows = batch_rows(view.inputs)
            if rows is not None and rows > 1:
                BatchMajor(func, view.inputs, rows).run()
