"""Make devices of different kinds agree on integers that depend on rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult
from xdsl.passes import ModulePass

from ..dialects.aten import AtenOp
from ..dialects.compute import dtype_of
from ..dialects.sharding_attrs import ShardingAttr
from ..dialects.spmd import ReshardOp
from ..dialects.step import BACKWARD, sharding_of
from ..ir.cluster import Cluster
from ..ir.sharding import Reduction, Sharding
from .step.requirements import require_no_fragments
from .step.step_view import StepView, step_views

_LOCAL = frozenset(("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices"))
"""The ops whose choices only their own backward reads."""

_FLOATS = ("float", "bfloat")
_INTEGERS = ("int", "uint")
"""Prefixes of dtypes. Booleans do not count: where rounding changes one, both alternatives are nearly equal."""


@dataclass(frozen=True)
class AgreeOnChoicesPass(ModulePass):
    """
    Make devices of different kinds use the integers that the first of them computes.

    Devices that compute the same value may round it differently. If the value is a choice (the experts of a token, an
    order of rows, a position of a maximum), a difference in the last bit makes them continue with different rows, and a
    later sum or concatenation over the devices combines rows that do not belong together.

    Requires: shardings of all values (`insert-resharding`), a cluster.
    Ensures: an integer that is computed from floating-point operands, and is not split along axes with devices of
    different kinds, is resharded to a partial sum that only the first device along these axes contributes to; all users
    read that sum. Positions of maxima in pools, which only their own backward reads, stay.

    Before:
    ```mlir
    #fast = #spmd.device<"fast", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #slow = #spmd.device<"slow", flops = {float32 = 1.0e8}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<8xi64> {
      %expert = aten.argmax %x {dim = 1 : i64} : (tensor<8x4xf32>) -> tensor<8xi64>
      func.return %expert : tensor<8xi64>
    }
    ```

    After:
    ```mlir
    #fast = #spmd.device<"fast", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #slow = #spmd.device<"slow", flops = {float32 = 1.0e8}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<8xi64> {
      %expert = aten.argmax %x {dim = 1 : i64} : (tensor<8x4xf32>) -> tensor<8xi64>
      %expert.first = spmd.reshard %expert to <@mesh, [{}], unreduced={"gpu"}> : tensor<8xi64>
      %expert.agreed = spmd.reshard %expert.first to <@mesh, [{}]> : tensor<8xi64>
      func.return %expert.agreed : tensor<8xi64>
    }
    ```

    Source: none; found by inspecting programs that run on unequal devices (HAP 2.1).
    """

    name = "agree-on-choices"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for view, cluster in step_views(op):
            agree_on_choices(view, cluster)


def agree_on_choices(view: StepView, cluster: Cluster) -> None:
    """Make devices of different kinds use the integers of the first, in one step or in one stage."""
    mixed = mixed_axes(cluster)
    if not mixed:
        return
    require_no_fragments(view.func, AgreeOnChoicesPass.name)
    for op in list(view.ops):
        for result in choices(op):
            sharding = sharding_of(result)
            if axes := [axis for axis in mixed if axis not in sharding.split_axes]:
                _share(result, sharding, axes, view.mesh.name)


def mixed_axes(cluster: Cluster) -> list[str]:
    """Return the spatial axes along which devices differ in kind."""
    mesh = cluster.mesh
    mixed: list[str] = []
    for axis in mesh.spatial:
        groups = mesh.groups((axis.name,))
        if any(len({cluster.device(rank).kind for rank in group}) > 1 for group in groups):
            mixed.append(axis.name)
    return mixed


def choices(op: Operation) -> list[OpResult]:
    """Return the results of an op that are integers computed from floating-point operands."""
    if not isinstance(op, AtenOp) or op.name in _LOCAL:
        return []
    if not any(dtype_of(operand).startswith(_FLOATS) for operand in op.args):
        return []
    return [result for result in op.results if dtype_of(result).startswith(_INTEGERS)]


def _share(result: OpResult, sharding: Sharding, axes: list[str], mesh: str) -> None:
    """Make every user read the value of the first device along some axes."""
    partial = replace(sharding, partial=tuple((axis, Reduction.SUM) for axis in axes))
    first = ReshardOp(result, ShardingAttr.of(mesh, partial))
    shared = ReshardOp(first, ShardingAttr.of(mesh, sharding))
    op = result.op
    for reshard, suffix in ((first, "first"), (shared, "agreed")):
        reshard.result.name_hint = f"{result.name_hint or 'choice'}.{suffix}"
        reshard.location = op.location
        if BACKWARD in op.attributes:
            reshard.attributes[BACKWARD] = op.attributes[BACKWARD]
    result.replace_uses_with_if(shared.result, lambda use: use.operation is not first)
    block = op.parent
    assert block is not None, "a step is a block of ops"
    block.insert_ops_after((first, shared), op)
