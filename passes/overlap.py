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
    Run collectives beside compute: in two halves, started early, waited for late, small ones together.

    Reductions of gradients start when the last operand of their bucket is there; the updates follow in the order of
    the buckets. Parameters are gathered block by block, a bucket ahead of their use, for forward and again for
    backward; where memory allows, not those that forward still needs when that would start. Any other collective starts
    when its operand is there if there is work to do before its first use; to make some, the gradients of weights are
    computed after its start and not before.

    A reduce-scatter is waited for once it is over: when something started after it over the same axes is, or when it
    has had three times its predicted time. So full gradients are freed while backward runs, and nothing waits. Where a
    rank would hold more than `memory`, less is under way, though that may take time: the oldest reduce-scatters are
    waited for before the op that is too much, and gathers start after it.

    Requires: collectives (`select-collectives`). Fragments are gone through one by one, then what is around them.
    Ensures: the same collectives but for gathers of what is there, in one order on all ranks. What starts together is
    of one kind, over the same axes and of one dtype, and is waited for before the first use. Updates come last, and
    the operands of collectives may come earlier; otherwise ops keep their order. Frees are dropped: run
    `insert-frees` after it.

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
    reductions in flight, Megatron-LM for gradients of weights beside the reduction of activations' gradients.
    """

    name = "overlap"

    bucket_mb: int | float | None = None
    """The MiB that a bucket should have; by default as many as take an eighth longer, each, than at best on the
    module's cluster (8 times as long to send as a collective takes to begin), and 25 without a cluster."""

    prefetch: int = 1
    """How many buckets ahead of their use parameters are gathered."""

    gradients: bool = True
    """Whether to start reductions of gradients early."""

    gathers: bool = True
    """Whether to gather parameters ahead."""

    activations: bool = True
    """Whether to start other collectives early."""

    in_flight: int | None = None
    """How many reduce-scatters over the same axes may be under way at once; by default as many as cost no time."""

    memory: int | float | None = None
    """Bytes that each rank may use; by default the memory of its device in the module's cluster, less a tenth."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        known = any(isinstance(each, ClusterOp) for each in op.ops)
        for func in step_functions(op):
            forget_memory_plan(func.body.block)
            for stage, mesh in stage_meshes(op, func):
                view, cluster = StepView(func, mesh, stage), cluster_on(op, mesh) if known else None
                fragments = [each for each in func.body.block.ops if isinstance(each, FragmentOp) and view.has(each)]
                for fragment in (*fragments, None):
                    flow = OpFlow(view, fragment)
                    if flow.roles:
                        self._schedule(BucketTraffic(flow, cluster, self._bucket_bytes))
                if cluster is None or keep_within(view, cluster, self._limits(cluster)):
                    for block in (*(fragment.body.block for fragment in fragments), func.body.block):
                        reuse_copies(block)

    @property
    def _bucket_bytes(self) -> float | None:
        return self.bucket_mb * _MIB if self.bucket_mb is not None else None

    def _limits(self, cluster: Cluster) -> list[float]:
        """The bytes that each rank may use."""
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
