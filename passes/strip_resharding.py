"""The pass `strip-resharding`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from ..dialects.pipe import FragmentOp, TransferOp
from ..dialects.placed import AT
from ..dialects.spmd import AccumulateOp, FreeOp, ReshardingOp, StartOp, WaitOp
from .errors import fail


@dataclass(frozen=True)
class StripReshardingPass(ModulePass):
    """
    Remove every change of sharding, so that a search can run again on a program that was already lowered.

    Requires: a step whose parts of the batch were not written out one after the other (`accumulate`, `duplex`,
    `schedule-pipeline`): nothing undoes that.
    Ensures: no `spmd.reshard`, collective, `spmd.start`, `spmd.wait` or `spmd.free` is left. Types are
    global, so each is the identity and its operand takes its place; of a transfer to another stage the tasks
    go. Signatures and homes stay, and how transfers arrive.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<8xf32> {
      %0 = spmd.all_gather [{"gpu"}] %x out_sharding = <@mesh, [{}]> : tensor<8xf32>
      %y = aten.relu %0 : (tensor<8xf32>) -> tensor<8xf32>
      func.return %y : tensor<8xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<8xf32> {
      %y = aten.relu %x : (tensor<8xf32>) -> tensor<8xf32>
      func.return %y : tensor<8xf32>
    }
    ```

    Source: HAP 3.1 (search, ratios and collectives are decided in turn, again and again).
    """

    name = "strip-resharding"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Strip every function of the module."""
        for each in op.walk():
            if isinstance(each, FuncOp):
                strip_resharding(each)


def strip_resharding(func: FuncOp) -> None:
    """
    Remove all changes of sharding from one function, in place.

    Raises:
        OpFailure: parts of the batch were written out; then nothing was changed.
    """
    for op in func.walk():
        if isinstance(op, FragmentOp | AccumulateOp) or AT in op.attributes:
            fail(
                op,
                "is of one part of the batch: accumulate, duplex or schedule-pipeline has written out the parts, "
                "which nothing undoes; begin with the step before these passes, such as the global.mlir of a plan",
            )
    for block in func.body.blocks:
        for op in list(block.ops):
            if isinstance(op, FreeOp):
                Rewriter.erase_op(op)
            elif isinstance(op, TransferOp):
                op.tasks = None
            elif isinstance(op, ReshardingOp):
                Rewriter.replace_op(op, [], [op.operand])
            elif isinstance(op, WaitOp):
                start: StartOp = op.start
                Rewriter.replace_op(op, [], list(start.args))
                Rewriter.erase_op(start)
