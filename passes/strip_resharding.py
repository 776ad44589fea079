"""Remove changes of sharding from a lowered step, so that it can be searched again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from ..dialects.compute import SIGNATURE, ComputeOp
from ..dialects.mesh_ops import MeshOp
from ..dialects.pipe import SCHEDULE, STAGE, FragmentOp, TransferOp
from ..dialects.placed import AT, SHARDING, parts_of
from ..dialects.sharding_attrs import MeshAttr
from ..dialects.spmd import AccumulateOp, ReshardingOp, StartOp, WaitOp
from ..dialects.step import REGATHER, WORKING, merge_argument_attributes, merge_result_attributes
from ..ir.mesh import Mesh
from .errors import fail
from .step.list_regrouping import regroup
from .step.memory_plan import forget_memory_plan
from .step.step_view import StepView, batch_rows, step_functions
from .unrolling.unroller import PARTS

_OF_FIRST_PART = re.compile(rf"\.{PARTS[0]}(?=(_\d+)?$)")
"""The suffix that `duplex` adds to names; a number follows if two printed values have the same name."""


@dataclass(frozen=True)
class StripReshardingPass(ModulePass):
    """
    Remove every change of sharding, so that a search can run again on a lowered program.

    A loop over micro-batches is replaced by the full batch: the ops of fragments (`accumulate`, `schedule-pipeline`)
    replace the fragments, and of the copies that `duplex` creates one stays. Rows of the batch that sort together
    (`sort-across-rows`) sort separately again.

    Requires: nothing.
    Ensures: no `spmd.reshard`, collective, `spmd.start`, `spmd.wait`, `spmd.free`, `spmd.accumulate` or `pipe.fragment`
    is left, and no schedule. Types are global, so each of these ops is the identity and is replaced by its operand.
    Transfers between stages lose their tasks. Stages stay. Signatures, homes and the shardings of transfers stay,
    unless meshes had temporal axes: these are removed with all decisions that refer to them, which are signatures,
    homes, working copies and the shardings of transfers.

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

    Source: HAP 3.1 (search, ratios and collectives are decided in turn, repeatedly).
    """

    name = "strip-resharding"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Strip every function of the module."""
        strip_resharding(op)


def strip_resharding(module: ModuleOp) -> None:
    """Remove all changes of sharding, loops, and joint sorts of rows of the batch from a module, in place."""
    is_in_parts = False
    for op in module.ops:
        if isinstance(op, MeshOp) and len(spatial := op.mesh.spatial) < len(op.mesh.axes):
            if not spatial:
                fail(op, f'@{op.sym_name.data} has no axis of devices, only of time; give it one: "gpu"=1')
            op.axes = MeshAttr(Mesh(tuple(spatial)))
            is_in_parts = True
    for func in step_functions(module):
        strip_function(func)
        if is_in_parts:
            # A rank's rows of one micro-batch do not determine its rows of the full batch.
            _forget(func)
        rows = batch_rows(StepView(func, Mesh(())).inputs)
        if rows is not None:
            regroup(func, rows)


def strip_decisions(module: ModuleOp) -> None:
    """Remove the results of a search from a module as well, in place; pins and ratios stay."""
    strip_resharding(module)
    for func in step_functions(module):
        _forget(func)


def strip_function(func: FuncOp) -> None:
    """Remove all changes of sharding and loops from one function, in place; signatures and homes stay."""
    for block in func.body.blocks:
        forget_memory_plan(block)
        for op in list(block.ops):
            if isinstance(op, FragmentOp):
                _inline(op)
        for op in list(block.ops):
            if isinstance(op, TransferOp):
                op.tasks = op.order = None
            elif isinstance(op, ReshardingOp):
                Rewriter.replace_op(op, [], [op.operand])
            elif isinstance(op, WaitOp):
                start: StartOp = op.start
                Rewriter.replace_op(op, [], list(start.args))
                Rewriter.erase_op(start)
        _join_parts(block)
    func.attributes.pop(SCHEDULE, None)


def _inline(fragment: FragmentOp) -> None:
    """Replace a fragment by its ops; its results become the values of all micro-batches."""
    for op in fragment.body.block.ops:
        if fragment.stage is not None and isinstance(op, ComputeOp):
            op.attributes.setdefault(STAGE, fragment.stage)
    last = fragment.terminator
    handed_on = list(last.args)
    Rewriter.erase_op(last)
    Rewriter.inline_block(fragment.body.block, InsertPoint.before(fragment))
    Rewriter.replace_op(fragment, [], handed_on)


def _join_parts(block: Block) -> None:
    """Replace the copies of an op for the micro-batches of an unrolled loop by the copy for the first."""
    for op in list(block.ops):
        if isinstance(op, AccumulateOp):
            Rewriter.replace_op(op, [], [op.part if _is_later(op.total) else op.total])
    for op in reversed(list(block.ops)):
        if any(parts_of(op).values()):
            if any(tuple(result.uses) for result in op.results):
                fail(
                    op,
                    "belongs to a later part of an unrolled loop, but its result has other uses than the sum with the"
                    " first part, so the unrolling cannot be undone; strip the step as it was before duplex",
                )
            Rewriter.erase_op(op)
        elif op.attributes.pop(AT, None) is not None:
            if isinstance(op, TransferOp):
                op.label = StringAttr(_OF_FIRST_PART.sub("", op.label.data))
            for result in op.results:
                result.name_hint = _OF_FIRST_PART.sub("", result.name_hint) if result.name_hint else None


def _is_later(value: SSAValue) -> bool:
    """Return whether a value belongs to a later micro-batch of an unrolled loop."""
    return isinstance(value, OpResult) and any(parts_of(value.op).values())


def _forget(func: FuncOp) -> None:
    undecided: dict[str, Attribute | None] = {SHARDING: None, WORKING: None, REGATHER: None}
    merge_argument_attributes(func, {argument.index: undecided for argument in func.body.block.args})
    returned = func.body.block.last_op
    merge_result_attributes(func, dict.fromkeys(range(len(returned.operands) if returned else 0), undecided))
    for op in func.body.block.ops:
        for name in (SIGNATURE, WORKING, REGATHER):
            op.attributes.pop(name, None)
        if isinstance(op, TransferOp):
            op.out_sharding = None
