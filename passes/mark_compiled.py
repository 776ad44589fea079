"""Mark a step whose computation will be compiled, so that costs count fused kernels."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.passes import ModulePass

from ..dialects.step import COMPILED
from .step.step_view import step_functions


@dataclass(frozen=True)
class MarkCompiledPass(ModulePass):
    """
    Mark that the computation of a step between collectives will be compiled, so that plans are priced accordingly.

    Consecutive elementwise ops are then one kernel: its launch counts once, each of its operands is read once, and
    values inside the kernel are neither written nor read. Searches, overlap and the simulator use these prices. The
    program stays the same; `PlanOptions(compile=True)` and `run --compile` compile it.

    Requires: a step function; run it before any pass that uses prices.
    Ensures: `train.compiled` on the function.

    Before:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %x: tensor<8xf32>) -> tensor<8xf32> {
      %a = aten.mul.Tensor %x, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %b = aten.relu %a : (tensor<8xf32>) -> tensor<8xf32>
      func.return %b : tensor<8xf32>
    }
    ```

    After:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %x: tensor<8xf32>) -> tensor<8xf32>
        attributes {train.compiled} {
      %a = aten.mul.Tensor %x, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %b = aten.relu %a : (tensor<8xf32>) -> tensor<8xf32>
      func.return %b : tensor<8xf32>
    }
    ```

    Source: fusion of TorchInductor (Ansel et al. 2024, 4.3), which `passes/analysis/fusion.py` models.
    """

    name = "mark-compiled"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Mark every step function of the module."""
        for func in step_functions(op):
            func.attributes[COMPILED] = UnitAttr()
