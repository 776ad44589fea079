"""Set the dtype of gradients while devices reduce them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from ..dialects import train
from ..dialects.compute import dtype_of
from .analysis.reductions import widening_casts
from .errors import fail
from .step.step_view import step_functions


@dataclass(frozen=True)
class SetReduceDtypePass(ModulePass):
    """
    Set the dtype in which devices reduce gradients that are cast to a wider dtype before the updates.

    In mixed precision, the gradients of matrices are computed in bfloat16 and cast to float32. If they are reduced in
    float32, a gradient stays a partial value up to its cast; in bfloat16 it is reduced before the cast, with half the
    bytes. Gradients that are computed in float32 are always reduced in float32. Without this pass the search decides
    for each gradient, and presets reduce in float32.

    Requires: a step function before `search-strategy` or `search-plan`, with gradients in such a dtype that are cast.
    Ensures: `train.reduce_dtype` on the function, which every search and every preset obeys.

    Before:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %g: tensor<8xbf16>, %n: tensor<f32> {train.step_count},
        %lr: tensor<f32> {train.learning_rate}) -> (tensor<8xf32> {train.updates = 0 : i64}) {
      %wide = aten._to_copy %g {dtype = f32} : (tensor<8xbf16>) -> tensor<8xf32>
      %w.new = train.sgd %w, %wide, %n, %lr {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new : tensor<8xf32>
    }
    ```

    Pipeline: set-reduce-dtype{dtype=float32}

    After:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %g: tensor<8xbf16>, %n: tensor<f32> {train.step_count},
        %lr: tensor<f32> {train.learning_rate}) -> (tensor<8xf32> {train.updates = 0 : i64})
        attributes {train.reduce_dtype = "float32"} {
      %wide = aten._to_copy %g {dtype = f32} : (tensor<8xbf16>) -> tensor<8xf32>
      %w.new = train.sgd %w, %wide, %n, %lr {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new : tensor<8xf32>
    }
    ```

    Source: `reduce_dtype` of torch's fully sharded data parallelism.
    """

    name = "set-reduce-dtype"

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The dtype that gradients are computed in, or the dtype that they are cast to."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for func in step_functions(op):
            if train.FORWARD in func.attributes:
                continue
            casts = widening_casts(func)
            dtypes = {dtype_of(value): None for cast in casts for value in (cast.args[0], cast.outs[0])}
            if self.dtype not in dtypes:
                why = f"they are in {' and '.join(dtypes)}" if dtypes else "none is cast to a wider dtype"
                advice = "expected one of these" if dtypes else 'leave it out, or give the step precision="bf16-mixed"'
                fail(func, f"gradients cannot be reduced in {self.dtype}, because {why}; {advice}")
            func.attributes[train.REDUCE_DTYPE] = StringAttr(self.dtype)
