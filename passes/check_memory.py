"""Check that a program fits in the memory of its devices."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..ir.cluster import Cluster
from .analysis.memory import MemoryPeak, roles_text, size_text
from .analysis.tightest import tightest_rank
from .errors import fail
from .step.step_view import StepView, step_views


@dataclass(frozen=True)
class CheckMemoryPass(ModulePass):
    """
    Refuse a program that needs more memory than the devices have.

    Requires: a cluster; run it last, because passes that move ops move memory peaks.
    Ensures: the live values of every rank fit into the device's memory, or `limit`, at any time. Nothing changes.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh
      devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 384.0, launch = 0.0>]
      placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]
    func.func @f(%x: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<64xf32> {
      %y = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, [{}]> : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh
      devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 384.0, launch = 0.0>]
      placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>]
    func.func @f(%x: tensor<64xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<64xf32> {
      %y = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, [{}]> : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    ```

    Source: liveness over the scheduled program.
    """

    name = "check-memory"

    limit: int | float | None = None
    """Bytes that each rank may use; by default the memory of its device."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Check every step function of the module."""
        for view, cluster in step_views(op):
            check_memory(view, cluster, self.limit)


def check_memory(view: StepView, cluster: Cluster, limit: float | None = None) -> MemoryPeak:
    """
    Return the peak of the rank that comes closest to its limit. Raises OpFailure at the op where a rank exceeds it.

    Args:
        limit: bytes that each rank may use; by default the memory of its device.
    """
    rank = tightest_rank(view, cluster, limit)
    peak = rank.peak
    if rank.excess > 0:
        allowed = "whose device has" if limit is None else "which may use"
        alive = ", ".join(f"{value.name} ({size_text(value.bytes)})" for value in peak.alive)
        fail(
            peak.op,
            f"here the plan needs {size_text(peak.bytes)} on rank {peak.rank},"
            f" {allowed} {size_text(rank.limit)}: {size_text(rank.excess)} too much"
            f" ({roles_text(peak.by_role)}); the largest live here: {alive}"
            '; use ZeRO (pin preset "zero3"), a smaller batch, or more devices',
        )
    return peak
