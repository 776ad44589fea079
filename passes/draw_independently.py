"""Draw random numbers on each device by itself."""

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

    The generator is seeded by the seed of the step, the stream and where the part starts: devices that hold the same
    part draw the same, others draw other numbers. So the numbers depend on how a tensor is spread, and are not those
    of one device; the mathematics of training is the same.

    Requires: nothing.
    Ensures: every random op says `independent`.

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

    Source: Megatron-LM's random states, one for what tensor-parallel ranks share and one for what they do not.
    """

    name = "draw-independently"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for func in step_functions(op):
            for each in func.walk():
                if isinstance(each, AtenOp) and each.is_random:
                    each.attributes[INDEPENDENT] = BoolAttr.from_bool(True)
