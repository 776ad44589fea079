"""Replace each change of sharding by a collective, with the cheapest method on the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from ..dialects.compute import shape_of, value_bytes
from ..dialects.mesh_ops import ClusterOp, MeshOp, find_mesh
from ..dialects.spmd import COLLECTIVES, CollectiveOp, ReshardOp
from ..dialects.step import BACKWARD, sharding_of
from ..ir.cluster import Cluster
from ..ir.collective_cost import Method, cheapest_method, may_have_phases, methods_for, methods_in_one_phase
from ..ir.collectives import Step, single_step
from ..ir.mesh import Mesh
from .errors import fail
from .step.step_view import cluster_on

Selection = Literal["auto", "padded", "grouped_broadcast", "hierarchical"]


def clusters_of(module: ModuleOp) -> dict[str, Cluster]:
    """Return the clusters of a module by the names of their meshes."""
    meshes = [op.mesh for op in module.ops if isinstance(op, MeshOp)]
    described = {op.mesh.data for op in module.ops if isinstance(op, ClusterOp)}
    return {mesh.name: cluster_on(module, mesh) for mesh in meshes if mesh.name in described}


@dataclass(frozen=True)
class ReshardToCollective(RewritePattern):
    """One resharding -> one collective."""

    selection: Selection
    clusters: Mapping[str, Cluster]

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReshardOp, rewriter: PatternRewriter) -> None:
        """Match `spmd.reshard`."""
        mesh_name = op.out_sharding.data.mesh
        mesh = find_mesh(op, mesh_name)
        source = sharding_of(op.operand)
        step = single_step(source, op.sharding, mesh)
        if step is None:
            fail(op, f"no single collective converts {source} to {op.sharding}; run insert-resharding first")
        method = None if step.kind.is_local else self._method(op, step, mesh)
        new: CollectiveOp = COLLECTIVES[step.kind](
            op.operand, mesh_name, step, method=method, regather=op.regather is not None
        )
        new.location = op.location
        if BACKWARD in op.attributes:
            new.attributes[BACKWARD] = op.attributes[BACKWARD]
        rewriter.replace(op, new)

    def _method(self, op: ReshardOp, step: Step, mesh: Mesh) -> Method:
        cluster = self.clusters.get(mesh.name)
        shape = shape_of(op.operand)
        if self.selection != "auto":
            possible = methods_in_one_phase(step, shape, mesh)
            phases = self.selection == "hierarchical" and may_have_phases(step, mesh)
            return self.selection if phases or self.selection in possible else possible[0]
        if cluster is None:
            return methods_in_one_phase(step, shape, mesh)[0]
        return cheapest_method(cluster, step, value_bytes(op.operand), methods_for(cluster, step, shape))


@dataclass(frozen=True)
class SelectCollectivesPass(ModulePass):
    """
    Replace every `spmd.reshard` by the collective that carries it out, with its method.

    Requires: reshardings of one step each, as `insert-resharding` writes them.
    Ensures: no `spmd.reshard` is left. A gather or scatter of unequal parts is `padded` to the largest part, because no
    backend takes unequal parts, or a `grouped_broadcast` of each part (in a scatter, a reduction of each part to its
    owner), whichever is faster on the module's cluster; without a cluster it is padded. An all-to-all of unequal parts
    is `padded`. A collective over several axes, with only the last one inside hosts, is `hierarchical` if that is
    faster, for equal and unequal parts: a reduction or all-to-all is over the last axis first and then over the others,
    a gather over the others first. An all-to-all along one dim is excluded, because only its two ends know its pieces.
    All other collectives are `flat`. (The replacement of an all-reduce by a reduce-scatter and an all-gather of a dim
    is a choice of the shortest path and has already been made.)

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%w: tensor<7xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<7xf32> {
      %0 = spmd.reshard %w to <@mesh, [{}]> : tensor<7xf32>
      func.return %0 : tensor<7xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%w: tensor<7xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<7xf32> {
      %0 = spmd.all_gather [{"gpu"}] %w out_sharding = <@mesh, [{}]> method = "padded" : tensor<7xf32>
      func.return %0 : tensor<7xf32>
    }
    ```

    Source: HAP 2.5.
    """

    name = "select-collectives"

    method: Selection = "auto"
    """
    Method of gathers and scatters of unequal parts, or with `hierarchical` of all collectives over several axes;
    `auto` chooses by cost.
    """

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every resharding of the module."""
        pattern = ReshardToCollective(self.method, clusters_of(op))
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
