"""Repeat a pipeline until the predicted step time stops falling."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from .errors import PassError
from .pipeline import Pipeline, replace_module, run_pipeline
from .shares.prediction import predicted_seconds

_CLOSE = 1e-9
"""Relative decrease of the time that counts as an improvement."""


@dataclass(frozen=True)
class FixedPointPass(ModulePass):
    """
    Run a pipeline again and again until the predicted step time stops falling, and keep the fastest program.

    A strategy is optimal for the ratios that it was searched with, and ratios for a strategy, so the two are found in
    turn. The time is predicted from the phases of `balance-ratios`. It may also rise, or alternate between two
    programs; a run that does not improve on the best, or fails, ends the loop and is dropped. Pins (`add-pins`) stay,
    so that every run obeys them.

    Pipeline: fixed-point{pipeline="search-strategy,balance-ratios" max=3}

    Requires: the requirements of the pipeline, which must write signatures: the time is predicted from a strategy.
    Ensures: the guarantees of the pipeline.

    Before:
    ```mlir
    #fast = #spmd.device<"fast", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
    #slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<8x4xf32> {
      %y = aten.relu %x : (tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %y : tensor<8x4xf32>
    }
    ```

    After:
    ```mlir
    #fast = #spmd.device<"fast", flops = {float32 = 3.0e9}, bandwidth = 3.0e9, memory = 1.0e9, launch = 0.0>
    #slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    #rows = #spmd.sharding<@mesh, [{"gpu"}, {}], offsets={0: [0, 6, 8]}>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #rows}) -> tensor<8x4xf32> attributes {
      spmd.search = {algorithm = "eliminate", cost = 1.28e-07, lower_bound = 1.28e-07, peak_bytes = 128 : i64},
      spmd.ratios = [#spmd.ratios<@mesh, {"gpu" = [0.75, 0.25]}>],
      spmd.balance = {before = 1.28e-07, after = 6.4e-08}
    } {
      %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh,
        ([{"gpu"}, {}], offsets={0: [0, 6, 8]}) -> ([{"gpu"}, {}], offsets={0: [0, 6, 8]})>
      } : (tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %y : tensor<8x4xf32>
    }
    ```

    Source: HAP 3.1.
    """

    name = "fixed-point"

    pipeline: str
    """The passes to run."""

    max: int = 3
    """Largest number of runs."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on the module."""
        pipeline = Pipeline.parse(self.pipeline)
        best, least = op.clone(), float("inf")
        for turn in range(self.max):
            try:
                run_pipeline(ctx, op, pipeline)
            except PassError:
                # With the new shares, pins may exclude every strategy.
                if turn == 0:
                    raise
                break
            seconds = predicted_seconds(op)
            if seconds >= least * (1.0 - _CLOSE):
                break
            best, least = op.clone(), seconds
        replace_module(op, best)
