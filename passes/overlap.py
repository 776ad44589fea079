"""Overlap collectives with computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from ..dialects.mesh_ops import ClusterOp
from ..dialects.pipe import FragmentOp
from ..ir.cluster import Cluster
from .overlapping.buckets import Bucket, BucketTraffic, plan_arguments, plan_inner
from .overlapping.copies import reuse_copies
from .overlapping.flow import OpFlow
from .overlapping.memory_limit import keep_within
from .overlapping.order import write_schedule
from .overlapping.results import plan_results
from .overlapping.waits import wait_early
from .search.within_memory import HEADROOM
from .step.memory_plan import forget_memory_plan
from .step.step_view import StepView, cluster_on, stage_meshes, step_functions

_MIB = 2**20


@dataclass(frozen=True)
class OverlapPass(ModulePass):
    """
    Overlap collectives with computation: start them early, wait for them late, and send small ones together.

    Reductions of gradients start when the last operand of their bucket is computed; the updates follow in the order of
    the buckets. Parameters are gathered block by block, a bucket ahead of their use, for forward and again for
    backward; if memory suffices, parameters that forward still needs when that gather would start are not gathered
    again. Any other collective starts when its operand is computed, if other work can overlap with it before its first
    use; weight gradients are computed after its start to provide such work.

    A reduce-scatter is waited for once it is complete: when a later collective over the same axes is, or when it has
    had three times its predicted time. This frees full gradients during backward at no cost in time. Where a rank would
    hold more than `memory`, fewer collectives are in flight, even if that takes time: the oldest reduce-scatters are
    waited for before the op that exceeds the limit, and gathers start after it.

    Requires: collectives (`select-collectives`). Fragments are scheduled one by one, then the ops around them.
    Ensures: the same collectives, except for gathers of live copies, in one order on all ranks. Collectives that start
    together have one kind, the same axes and one dtype, and are waited for before the first use. Updates come last, and
    the operands of collectives may come earlier; otherwise ops keep their order. Frees are dropped: run `insert-frees`
    afterwards.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %b: tensor<8xf32> {train.param = "b"},
        %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %lr: tensor<f32>)
        -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
      %g = aten.sum.dim_IntList %x {dim = [0 : i64],
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
      } : (tensor<4x8xf32>) -> tensor<8xf32>
      %h = aten.neg %g {
        spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>
      } : (tensor<8xf32>) -> tensor<8xf32>
      %g.sum = spmd.all_reduce [{"gpu"}] %g out_sharding = <@mesh, [{}]> : tensor<8xf32>
      %w.new = train.sgd %w, %g.sum, %lr {absent = ["momentum_buffer", "step"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %h.sum = spmd.all_reduce [{"gpu"}] %h out_sharding = <@mesh, [{}]> : tensor<8xf32>
      %b.new = train.sgd %b, %h.sum, %lr {absent = ["momentum_buffer", "step"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new, %b.new : tensor<8xf32>, tensor<8xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %b: tensor<8xf32> {train.param = "b"},
        %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>}, %lr: tensor<f32>)
        -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
      %g = aten.sum.dim_IntList %x {dim = [0 : i64],
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
      } : (tensor<4x8xf32>) -> tensor<8xf32>
      %h = aten.neg %g {
        spmd.signature = #spmd.sig<@mesh, ([{}], unreduced={"gpu"}) -> ([{}], unreduced={"gpu"})>
      } : (tensor<8xf32>) -> tensor<8xf32>
      %g.sum.started = spmd.start "all_reduce" %g, %h
        out_shardings = [#spmd.sharding<@mesh, [{}]>, #spmd.sharding<@mesh, [{}]>] : tensor<8xf32>, tensor<8xf32>
      %g.sum, %h.sum = spmd.wait %g.sum.started : tensor<8xf32>, tensor<8xf32>
      %w.new = train.sgd %w, %g.sum, %lr {absent = ["momentum_buffer", "step"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %b.new = train.sgd %b, %h.sum, %lr {absent = ["momentum_buffer", "step"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new, %b.new : tensor<8xf32>, tensor<8xf32>
    }
    ```

    Source: PyTorch DDP (Li et al. 2020, 3.2) for buckets, FSDP (Zhao et al. 2023, 3.3) for gathers ahead and few
    reductions in flight, Megatron-LM for weight gradients during the reduction of activations' gradients.
    """

    name = "overlap"

    bucket_mb: int | float | None = None
    """Size of a bucket in MiB; by default the size that makes communication on the module's cluster take an eighth
    longer than at best (8 times as long to send as a collective takes to begin), or 25 without a cluster. A bucket over
    fast links is no larger than the buckets over slow links that continue it."""

    prefetch: int = 1
    """Number of buckets that parameters are gathered ahead of their use."""

    gradients: bool = True
    """Whether to start reductions of gradients early."""

    gathers: bool = True
    """Whether to gather parameters ahead."""

    activations: bool = True
    """Whether to start other collectives early."""

    in_flight: int | None = None
    """Largest number of reduce-scatters in flight over the same axes; by default as many as cost no time."""

    memory: int | float | None = None
    """Bytes that each rank may use; by default nine tenths of its device's memory in the module's cluster."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        has_cluster = any(isinstance(child, ClusterOp) for child in op.ops)
        for func in step_functions(op):
            forget_memory_plan(func.body.block)
            for stage, mesh in stage_meshes(op, func):
                view, cluster = StepView(func, mesh, stage), cluster_on(op, mesh) if has_cluster else None
                fragments = [
                    child for child in func.body.block.ops if isinstance(child, FragmentOp) and view.has(child)
                ]
                for fragment in (*fragments, None):
                    flow = OpFlow(view, fragment)
                    if flow.roles:
                        size = self.bucket_mb * _MIB if self.bucket_mb is not None else None
                        self._schedule(BucketTraffic(flow, cluster, size))
                if fits := cluster is None or keep_within(view, cluster, self._limits(cluster)):
                    for fragment in fragments:
                        reuse_copies(fragment.body.block)
                # Copies that are made before a loop last until its end in any case.
                if fits or fragments:
                    reuse_copies(func.body.block)

    def _limits(self, cluster: Cluster) -> list[float]:
        devices = (cluster.device(rank) for rank in range(cluster.mesh.device_count))
        return [self.memory if self.memory is not None else (1 - HEADROOM) * device.memory for device in devices]

    def _schedule(self, traffic: BucketTraffic) -> None:
        buckets: list[Bucket] = []
        if self.gathers:
            buckets += plan_arguments(traffic, self.prefetch)
        if self.activations:
            buckets += plan_inner(traffic)
        updates: Sequence[Operation] = traffic.flow.updates
        if self.gradients:
            results = plan_results(traffic)
            buckets += results.buckets
            updates = results.updates
        write_schedule(traffic, buckets, updates)
        wait_early(traffic, self.in_flight)
