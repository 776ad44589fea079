"""Run the micro-batches in a loop that accumulates their gradients."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from ..dialects.pipe import STAGES
from .errors import fail
from .step.loop import find_loop, fragment_of, temporal_axis
from .step.memory_plan import forget_memory_plan
from .step.requirements import require_no_fragments
from .step.step_view import mesh_of_module, step_functions


@dataclass(frozen=True)
class AccumulatePass(ModulePass):
    """
    Turn the micro-batches into a loop: all micro-batched ops become one fragment.

    Requires: a temporal axis (`split-batch`) and collectives (`select-collectives`).
    Ensures: the ops of the loop are in one `pipe.fragment`, in their order; ops that the loop needs come before it, and
    ops that need its results after it. The reductions over the axis stay outside and mean that each micro-batch is
    added, in place, to the sum of the previous ones. Frees are dropped: run `insert-frees` afterwards.

    Before:
    ```mlir
    spmd.mesh @mesh = <["micro"=4 temporal, "gpu"=1]>
    func.func @step(%x: tensor<8xf32> {train.batch = "0"}, %c: tensor<f32>) -> tensor<f32> {
      %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@mesh, [{"micro"}]> : tensor<8xf32>
      %s = aten.sum %x.slice {spmd.signature = #spmd.sig<@mesh, ([{"micro"}]) -> ([], unreduced={"micro"})>}
        : (tensor<8xf32>) -> tensor<f32>
      %s.all_reduce = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, []> : tensor<f32>
      %y = aten.mul.Tensor %s.all_reduce, %c {spmd.signature = #spmd.sig<@mesh, ([], []) -> ([])>}
        : (tensor<f32>, tensor<f32>) -> tensor<f32>
      func.return %y : tensor<f32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["micro"=4 temporal, "gpu"=1]>
    func.func @step(%x: tensor<8xf32> {train.batch = "0"}, %c: tensor<f32>) -> tensor<f32> {
      %s = pipe.fragment "micro" over "micro" -> tensor<f32> {
        %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@mesh, [{"micro"}]> : tensor<8xf32>
        %s_1 = aten.sum %x.slice {spmd.signature = #spmd.sig<@mesh, ([{"micro"}]) -> ([], unreduced={"micro"})>}
          : (tensor<8xf32>) -> tensor<f32>
        pipe.yield %s_1 : tensor<f32>
      }
      %s.all_reduce = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, []> : tensor<f32>
      %y = aten.mul.Tensor %s.all_reduce, %c {spmd.signature = #spmd.sig<@mesh, ([], []) -> ([])>}
        : (tensor<f32>, tensor<f32>) -> tensor<f32>
      func.return %y : tensor<f32>
    }
    ```

    Source: gradient accumulation; time as a mesh axis.
    """

    name = "accumulate"

    axis: str | None = None
    """The temporal axis; by default the only one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for func in step_functions(op):
            require_no_fragments(func, self.name)
            if STAGES in func.attributes:
                fail(func, "has stages, each with its own micro-batches; run schedule-pipeline instead of accumulate")
            accumulate(func, temporal_axis(func, mesh_of_module(op), self.axis))


def accumulate(func: FuncOp, axis: str) -> None:
    """Put the loop over `axis` into a fragment of that name, in place."""
    block, loop = func.body.block, find_loop(func, axis)
    if not loop.inside:
        return
    forget_memory_plan(block)
    fragment = fragment_of(axis, axis, loop.inside)
    end = block.last_op
    assert end is not None, "a step function returns"
    block.insert_op_before(fragment, end)
    for op in loop.before:
        op.detach()
        block.insert_op_before(op, fragment)
    for op in loop.after:
        op.detach()
        block.insert_op_before(op, end)
