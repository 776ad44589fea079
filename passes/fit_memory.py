"""Repeat a search with a smaller memory budget until the program fits."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from ..dialects.step import MEMORY_BUDGET, SEARCH
from .analysis.tightest import tightest_ranks
from .pipeline import Pipeline, run_pipeline


@dataclass(frozen=True)
class FitMemoryPass(ModulePass):
    """
    Search again with a smaller memory budget until the program fits in the memory of the devices.

    A search counts the memory of changes of sharding, but not how early collectives start, nor how many share a bucket;
    later passes decide that. The bytes by which the program exceeds the search's prediction are subtracted from the
    memory budget of the next search (`spmd.memory_budget`), and the pipeline runs again on the same function.

    Pipeline: fit-memory{pipeline="search-strategy,insert-resharding,select-collectives,overlap" max=3}

    Requires: a program that is the output of the pipeline; the pipeline begins with a search.
    Ensures: the guarantees of the pipeline. A program that fits at once is unchanged. If the program still does not fit
    after `max` runs, it is left for `check-memory` to report.

    Before:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e6, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(%x: tensor<64xf32> {train.batch = "0"}) -> tensor<64xf32> {
      %y = aten.relu %x : (tensor<64xf32>) -> tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    ```

    After:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e6, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(%x: tensor<64xf32> {train.batch = "0"}) -> tensor<64xf32> {
      %y = aten.relu %x : (tensor<64xf32>) -> tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    ```

    Source: HAP 3.1, which alternates search and ratios.
    """

    name = "fit-memory"

    pipeline: str
    """The passes to run, a search first."""

    max: int = 3
    """Largest number of runs."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on the module."""
        pipeline = Pipeline.parse(self.pipeline)
        for _ in range(self.max):
            # The fullest rank of a function determines by how many bytes it exceeds the memory of a device.
            excesses: dict[FuncOp, float] = {}
            for rank in tightest_ranks(op):
                if rank.excess > 0:
                    excesses[rank.view.func] = max(rank.excess, excesses.get(rank.view.func, 0.0))
            if not excesses:
                return
            for func, excess in excesses.items():
                search = func.attributes.get(SEARCH)
                peak = search.data.get("peak_bytes") if isinstance(search, DictionaryAttr) else None
                predicted = float(peak.value.data) if isinstance(peak, IntegerAttr) else 0.0
                func.attributes[MEMORY_BUDGET] = FloatAttr(predicted - excess, 64)
            run_pipeline(ctx, op, pipeline)
