"""The pass `select-collectives`."""

from __future__ import annotations

import itertools
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

from ..dialects.compute import find_mesh, shape_of
from ..dialects.spmd import COLLECTIVES, CollectiveOp, ReshardOp
from ..dialects.step import BACKWARD, sharding_of
from ..ir.collectives import CollectiveKind, Step, single_step
from ..ir.mesh import Mesh
from ..ir.sharding import DimSharding
from .errors import fail

Method = Literal["flat", "padded"]


@dataclass(frozen=True)
class SelectCollectivesPass(ModulePass):
    """
    Replace every `spmd.reshard` by the collective that carries it out, with its method.

    Requires: reshardings of one step each, as `insert-resharding` makes them.
    Ensures: no `spmd.reshard` is left. A gather, scatter or all-to-all whose parts are not all of one size is
    `padded` to the largest, for no backend takes unequal parts; all others are `flat`. (That one all-reduce
    becomes a reduce-scatter and an all-gather, or a hierarchy of collectives, is the shortest path's choice
    and has already been made.)

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

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every resharding of the module."""
        PatternRewriteWalker(ReshardToCollective(), apply_recursively=False).rewrite_module(op)


class ReshardToCollective(RewritePattern):
    """One resharding -> one collective."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReshardOp, rewriter: PatternRewriter) -> None:
        """Match `spmd.reshard`."""
        mesh_name = op.out_sharding.data.mesh
        mesh = find_mesh(op, mesh_name)
        source = sharding_of(op.operand)
        step = single_step(source, op.sharding, mesh)
        if step is None:
            fail(
                op, f"no single collective leads from {source} to {op.sharding}; run insert-resharding first"
            )
        method = None if step.kind.is_local else method_of(step, shape_of(op.operand), mesh)
        new: CollectiveOp = COLLECTIVES[step.kind](
            op.operand, mesh_name, step, method=method, regather=op.regather is not None
        )
        new.location = op.location
        if BACKWARD in op.attributes:
            new.attributes[BACKWARD] = op.attributes[BACKWARD]
        rewriter.replace(op, new)


def method_of(step: Step, shape: tuple[int, ...], mesh: Mesh) -> Method:
    """How to run a collective on a value of `shape`: `padded` where its parts differ in size, else `flat`."""
    if step.kind is CollectiveKind.ALL_REDUCE:
        return "flat"
    dims = [(size, d) for s in (step.source, step.target) for size, d in zip(shape, s.dims, strict=True)]
    return "flat" if all(_equal_parts(size, dim, mesh) for size, dim in dims) else "padded"


def _equal_parts(size: int, dim: DimSharding, mesh: Mesh) -> bool:
    boundaries = dim.boundaries(size, mesh)
    return len({b - a for a, b in itertools.pairwise(boundaries)}) <= 1
