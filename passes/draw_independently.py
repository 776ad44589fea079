"""Draw random numbers on each device separately."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import BoolAttr, ModuleOp
from xdsl.passes import ModulePass

from ..dialects.aten import AtenOp
from ..dialects.compute import INDEPENDENT
from .step.step_view import step_functions


@dataclass(frozen=True)
class DrawIndependentlyPass(ModulePass):
    """
    Let every device draw its part of a random tensor from torch's own generator.

    The generator is seeded by the seed of the step, the stream and the offset of the part: devices that hold the same
    part draw the same numbers, other devices draw other numbers. So the numbers depend on the sharding of a tensor and
    differ from a run on one device; the mathematics of training is the same.

    Requires: nothing.
    Ensures: every random op has `independent = true`.

    Before:
    ```mlir
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %seed: tensor<i64> {train.seed}) -> tensor<8x4xf32> {
      %y, %kept = aten.random_dropout %x, %seed {p = 0.1 : f64, stream = 0 : i64}
        : (tensor<8x4xf32>, tensor<i64>) -> (tensor<8x4xf32>, tensor<8x4xi1>)
      func.return %y : tensor<8x4xf32>
    }
    ```

    After:
    ```mlir
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %seed: tensor<i64> {train.seed}) -> tensor<8x4xf32> {
      %y, %kept = aten.random_dropout %x, %seed {p = 0.1 : f64, stream = 0 : i64, independent = true}
        : (tensor<8x4xf32>, tensor<i64>) -> (tensor<8x4xf32>, tensor<8x4xi1>)
      func.return %y : tensor<8x4xf32>
    }
    ```

    Source: Megatron-LM's two random states, for values shared by tensor-parallel ranks and for values that differ.
    """

    name = "draw-independently"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for func in step_functions(op):
            for inner in func.walk():
                if isinstance(inner, AtenOp) and inner.is_random:
                    inner.attributes[INDEPENDENT] = BoolAttr.from_bool(True)
