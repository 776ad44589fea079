"""Divide a step into the stages of a pipeline."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from ..dialects.mesh_ops import ClusterOp, MeshOp
from ..dialects.staged import Stages
from ..ir.cluster import Cluster
from ..ir.submesh import divisions, is_division, subcluster, submesh
from .errors import fail
from .search.pins import resolve_pins
from .stages.chunk_bounds import best_chunks, rounds, seconds_of_chunks
from .stages.divide import divide, places_of_layers
from .stages.partition import Partition, partition
from .stages.stage_costs import AmpCosts, LayerWork, StageCosts, read_forward_seconds
from .step.layers import Layers, find_layers
from .step.requirements import require_no_resharding
from .step.step_view import StepView, cluster_of_module, step_functions


@dataclass(frozen=True)
class PartitionStagesPass(ModulePass):
    """
    Divide a step into the stages of a pipeline: contiguous layers, each stage on its own ranks.

    With `chunks` a stage has several groups of contiguous layers, and values return to it.

    A layer's backward and update are in its stage. A value that another stage needs crosses by a transfer, directly to
    that stage. A weight that several stages use is kept by the first: it is sent to the others, and their gradients
    return. Every stage has copies of batch items, scalars and constants, and of values that depend on these alone.

    Requires: a cluster; run it before `search-strategy`, and after `decompose-mean`. Pins of `add-pins` are resolved
    again, for the meshes of the stages.
    Ensures: a mesh and a cluster for each stage; `pipe.stages` on the function, `pipe.stage` on arguments and ops;
    transfers without shardings; a step count, a learning rate and a loss for each stage.

    Pipeline: partition-stages{stages=2}

    Before:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(%v: tensor<8xf32> {train.param = "fc1.weight"}, %w: tensor<8xf32> {train.param = "fc2.weight"},
        %x: tensor<8xf32> {train.batch = "0"}) -> tensor<8xf32> {
      %a = aten.mul.Tensor %x, %v : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc1")
      %b = aten.mul.Tensor %a, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("fc2")
      func.return %b : tensor<8xf32>
    }
    ```

    After:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    spmd.mesh @stage0 = <["gpu"=1]> on [0]
    spmd.cluster @two.stage0 on @stage0 devices [#cpu] placement [0] links [#link]
    spmd.mesh @stage1 = <["gpu"=1]> on [1]
    spmd.cluster @two.stage1 on @stage1 devices [#cpu] placement [0] links [#link]
    func.func @step(%v: tensor<8xf32> {train.param = "fc1.weight", pipe.stage = 0 : i64},
        %w: tensor<8xf32> {train.param = "fc2.weight", pipe.stage = 1 : i64},
        %x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> tensor<8xf32>
        attributes {pipe.stages = ["stage0", "stage1"]} {
      %a = aten.mul.Tensor %x, %v {pipe.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %a.at1 = pipe.transfer "a.at1" %a to @stage1 : tensor<8xf32>
      %b = aten.mul.Tensor %a.at1, %w {pipe.stage = 1 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      func.return %b : tensor<8xf32>
    }
    ```

    Source: AMP, supplement 6.2 and 6.4.
    """

    name = "partition-stages"

    stages: int
    """Number of stages."""

    ranks: str | None = None
    """Numbers of ranks of the stages, as "2,2"; by default as equal as possible, and the fastest such division."""

    chunks: int = 1
    """
    Number of chunks of consecutive layers of each stage, for `interleaved-1f1b`. The first chunks of all stages come
    before the second chunks, so values pass the stages once per chunk. If that is faster, the last stages have one
    chunk less: of two stages the first may have both ends of all skip connections.
    """

    begins: str | None = None
    """Index of the first layer of each stage, as "0,14", or of each chunk; by default the fastest choice."""

    cost: Literal["roofline", "amp"] = "roofline"
    """`roofline` counts each stage's own devices and all values that cross, `amp` the costs of AMP."""

    costs: str | None = None
    """A JSON file for `amp` with `forward_s`, the forward seconds of a sample by layer."""

    micro_batches: int = 4
    """Number of micro-batches that the batch will be divided into."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Divide every step function of the module."""
        cluster = cluster_of_module(op)
        for func in step_functions(op):
            if Stages(func).names:
                fail(func, "is already partitioned into stages")
            require_no_resharding(func, self.name)
            view = StepView(func, cluster.mesh)
            layers = find_layers(view)
            self._check_layers(func, layers)
            counts, best = self._best(view, layers, cluster)
            clusters = stage_clusters(cluster, counts)
            divide(view, layers, [c.mesh.name for c in clusters], places_of_layers(best.bounds, self.stages))
            add_stages(op, clusters)
        resolve_pins(op)

    def _check_layers(self, func: FuncOp, layers: Layers) -> None:
        if self.chunks < 1 or (self.chunks > 1 and self.stages < 2):
            fail(func, f"chunks={self.chunks} of {self.stages} stages: expected at least one chunk, or several stages")
        if self.chunks > 1 and self.cost == "amp":
            fail(func, f"chunks={self.chunks}: cost=amp is for stages of one chunk; use cost=roofline")
        if not 1 <= self.stages <= len(layers.names) // self.chunks:
            of_chunks = f" of {self.chunks} chunks" if self.chunks > 1 else ""
            fail(
                func,
                f"has {len(layers.names)} layers, which cannot form {self.stages} stages{of_chunks}: "
                f"{', '.join(layers.names)};"
                f" ask for fewer stages{' or chunks' if self.chunks > 1 else ''}",
            )

    def _best(self, view: StepView, layers: Layers, cluster: Cluster) -> tuple[tuple[int, ...], Partition]:
        """Return the fastest partition over the ways to give ranks to stages, with the numbers of ranks."""
        options = [self._given(view.func, cluster)] if self.ranks is not None else divisions(cluster.mesh, self.stages)
        if not options:
            fail(
                view.func,
                f"the {cluster.mesh.device_count} ranks of mesh {cluster.mesh} cannot be divided into {self.stages} "
                "stages, each on full rows or a part of one; a sub-mesh would have no device, so ask for fewer stages",
            )
        candidates: list[tuple[tuple[int, ...], Partition]] = []
        bounds = self._bounds(view.func, layers) if self.begins is not None else None
        for counts in options:
            costs = self._costs(view, layers, cluster, counts)
            if self.chunks == 1:
                times = self.micro_batches
                best = partition(len(layers.names), self.stages, times, costs.compute, costs.communicate, bounds)
            elif bounds is not None:
                best = Partition(bounds, seconds_of_chunks(costs, bounds))
            else:
                best = best_chunks(costs)
            candidates.append((counts, best))
        return min(candidates, key=lambda candidate: candidate[1].seconds)

    def _bounds(self, func: FuncOp, layers: Layers) -> tuple[int, ...]:
        """Return the first layer of each stage or chunk, and the number of layers."""
        assert self.begins is not None
        bounds = (*_numbers(func, "begins", self.begins), len(layers.names))
        counts = rounds(self.stages, self.chunks) if self.chunks > 1 else range(self.stages, self.stages + 1)
        ascend = bounds[0] == 0 and all(a < b for a, b in itertools.pairwise(bounds))
        if len(bounds) - 1 not in counts or not ascend:
            expected = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(self.stages)
            fail(
                func,
                f'begins="{self.begins}": expected {expected} ascending numbers of layers, the first 0; the layers'
                f" are {', '.join(f'{i} {name}' for i, name in enumerate(layers.names))}",
            )
        return bounds

    def _given(self, func: FuncOp, cluster: Cluster) -> tuple[int, ...]:
        assert self.ranks is not None
        counts = _numbers(func, "ranks", self.ranks)
        mesh, details = cluster.mesh, f'ranks="{self.ranks}"'
        if len(counts) != self.stages:
            fail(func, f"{details} has {len(counts)} stages, expected {self.stages}")
        if min(counts) < 1:
            fail(func, f"{details}: stage {counts.index(min(counts))} has no device; give it at least one")
        if sum(counts) != mesh.device_count:
            fail(func, f"{details} adds up to {sum(counts)}, mesh {mesh} has {mesh.device_count} ranks")
        if not is_division(mesh, counts):
            fail(func, f"{details}: a stage occupies neither full rows of mesh {mesh} nor a part of one row")
        return counts

    def _costs(self, view: StepView, layers: Layers, cluster: Cluster, counts: tuple[int, ...]) -> StageCosts:
        if self.cost == "roofline":
            if self.costs is not None:
                fail(view.func, "costs=FILE requires cost=amp")
            return StageCosts(LayerWork(view, layers), cluster, counts, self.micro_batches, self.chunks)
        try:
            forward = read_forward_seconds(self.costs) if self.costs is not None else None
        except ValueError as error:
            fail(view.func, str(error))
        if forward is not None and len(forward) != len(layers.names):
            fail(
                view.func,
                f"{self.costs} has {len(forward)} layers, the step {len(layers.names)}: {', '.join(layers.names)}",
            )
        return AmpCosts(LayerWork(view, layers), cluster, counts, self.micro_batches, forward=forward)


def _numbers(func: FuncOp, option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        fail(func, f'{option}="{text}": expected numbers, as "2,2"')


def stage_clusters(cluster: Cluster, counts: tuple[int, ...]) -> list[Cluster]:
    """Return the parts of a cluster for stages with these numbers of ranks."""
    clusters: list[Cluster] = []
    for index, (first, count) in enumerate(zip(itertools.accumulate(counts, initial=0), counts, strict=False)):
        mesh = submesh(cluster.mesh, first, count, f"stage{index}")
        assert mesh is not None
        clusters.append(subcluster(cluster, mesh, range(first, first + count)))
    return clusters


def add_stages(module: ModuleOp, clusters: list[Cluster]) -> None:
    """Put the meshes and clusters of the stages behind the meshes and clusters of the module."""
    after = [op for op in module.ops if isinstance(op, MeshOp | ClusterOp)][-1]
    first = 0
    for cluster in clusters:
        count = cluster.mesh.device_count
        new = [MeshOp(cluster.mesh, range(first, first + count)), ClusterOp(cluster)]
        module.body.block.insert_ops_after(new, after)
        after, first = new[-1], first + count
