"""Cut products and their collectives into parts that overlap."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..dialects.mesh_ops import ClusterOp
from .overlapping.chunked import write_chunks
from .overlapping.chunks import ChunkTimes, sites_of
from .overlapping.flow import OpFlow
from .step.requirements import require_no_fragments, require_nothing_started
from .step.step_view import StepView, cluster_on, stage_meshes, step_functions


@dataclass(frozen=True)
class ChunkCollectivesPass(ModulePass):
    """
    Cut products and their collectives into parts, so that one part is sent while another is multiplied.

    If the result of a product (`mm`, `addmm`, `bmm`, `baddbmm`) is reduced, by an all-reduce or a reduce-scatter, the
    product becomes products of parts, each with its own reduction. If an operand is gathered, each part is gathered
    separately and the products of the same pass, forward or backward, are cut as well; other users of the whole
    operand, such as the gradient of the weight, get the joined parts. The cut is along a dim that is split over no
    axis, rows before columns, so that each part has the placement of the whole, uneven shares included. If a view
    merges several leading dims of an operand into rows, the cut is along a leading dim that is not gathered; rows that
    are gathered evenly are cut within the rows of each device.

    Requires: collectives (`select-collectives`) that are not split into start and wait.
    Ensures: the same values. Collectives between gradients and updates, and gathers of parameters, are unchanged,
    because they overlap with other work. `overlap` starts the collective of each part separately.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%x: tensor<8x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>},
        %w: tensor<6x4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
        -> tensor<8x4xf32> {
      %h = aten.mm %x, %w {
        spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>
      } : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
      %s = spmd.all_reduce [{"gpu"}] %h out_sharding = <@mesh, [{}, {}]> method = "flat" : tensor<8x4xf32>
      %y = aten.relu %s {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %y : tensor<8x4xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%x: tensor<8x6xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {"gpu"}]>},
        %w: tensor<6x4xf32> {train.param = "w", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
        -> tensor<8x4xf32> {
      %x.part0 = aten.slice.Tensor %x {
        dim = 0 : i64, start = 0 : i64, end = 4 : i64,
        spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}]) -> ([{}, {"gpu"}])>
      } : (tensor<8x6xf32>) -> tensor<4x6xf32>
      %h.part0 = aten.mm %x.part0, %w {
        spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>
      } : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %x.part1 = aten.slice.Tensor %x {
        dim = 0 : i64, start = 4 : i64, end = 8 : i64,
        spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}]) -> ([{}, {"gpu"}])>
      } : (tensor<8x6xf32>) -> tensor<4x6xf32>
      %h.part1 = aten.mm %x.part1, %w {
        spmd.signature = #spmd.sig<@mesh, ([{}, {"gpu"}], [{"gpu"}, {}]) -> ([{}, {}], unreduced={"gpu"})>
      } : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %s.part0 = spmd.all_reduce [{"gpu"}] %h.part0 out_sharding = <@mesh, [{}, {}]> method = "flat" : tensor<4x4xf32>
      %s.part1 = spmd.all_reduce [{"gpu"}] %h.part1 out_sharding = <@mesh, [{}, {}]> method = "flat" : tensor<4x4xf32>
      %s = aten.cat %s.part0, %s.part1 {
        dim = 0 : i64, spmd.signature = #spmd.sig<@mesh, ([{}, {}], [{}, {}]) -> ([{}, {}])>
      } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %y = aten.relu %s {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %y : tensor<8x4xf32>
    }
    ```

    Pipeline: `chunk-collectives{parts=2}`

    Source: Wang et al., Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
    Models (ASPLOS 2023); PyTorch's asynchronous tensor parallelism.
    """

    name = "chunk-collectives"

    parts: int | None = None
    """Number of parts of every product that can be cut; by default 2, 4 or 8 if that is expected to be faster on the
    module's cluster, including launches, latencies and copies. If there is no cluster either, products stay whole."""

    def __post_init__(self) -> None:
        if self.parts is not None and self.parts < 2:
            raise ValueError(f"parts={self.parts}, expected at least 2 (leave it out to let the cost model choose)")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        has_cluster = any(isinstance(inner, ClusterOp) for inner in op.ops)
        for func in step_functions(op):
            require_no_fragments(func, self.name)
            require_nothing_started(func, self.name)
            for stage, mesh in stage_meshes(op, func):
                flow = OpFlow(StepView(func, mesh, stage))
                sites = list(sites_of(flow))
                if self.parts is not None:
                    counts = [min(self.parts, site.size) for site in sites]
                elif has_cluster:
                    times = ChunkTimes(flow, cluster_on(op, mesh))
                    counts = [times.best_parts(site) for site in sites]
                else:
                    continue
                for site, parts in zip(sites, counts, strict=True):
                    if parts > 1:
                        write_chunks(site, parts, mesh)
