"""Decide which results are written into the memory of an operand."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..dialects.reuse import set_reuses
from .analysis.buffer_reuse import reuse_of
from .step.step_view import step_functions


@dataclass(frozen=True)
class ReuseBuffersPass(ModulePass):
    """
    Write which results are written over an operand: updates over the values that they replace, sums and all-reduces
    over an operand that no other op reads afterwards.

    Requires: nothing; run it after every pass that adds or moves ops, and before `check-memory` and `insert-frees`.
    Ensures: each op that can write over an operand has `spmd.reuses`: for each result, the index of the operand whose
    memory it takes over, or -1 if it has new memory. The memory of an argument changes only if the function returns its
    new value. A `pipe.fragment` says which sums of its parts are in the memory of the first part's results. The
    verifier refuses a program that reads a value after it was written over; `check-memory` and the emitted program
    follow these attributes. Existing attributes are decided again.

    Before:
    ```mlir
    func.func @f(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
      %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
      %b = aten.add.Tensor %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %c = aten.add.Tensor %b, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      func.return %b, %c : tensor<4xf32>, tensor<4xf32>
    }
    ```

    After:
    ```mlir
    func.func @f(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
      %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
      %b = aten.add.Tensor %a, %x {spmd.reuses = array<i64: 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %c = aten.add.Tensor %b, %x {spmd.reuses = array<i64: -1>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      func.return %b, %c : tensor<4xf32>, tensor<4xf32>
    }
    ```

    Source: one walk over straight-line code with an alias analysis (`analysis.liveness`).
    """

    name = "reuse-buffers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for func in step_functions(op):
            for writer, operands in list(reuse_of(func)):
                set_reuses(writer, operands)
