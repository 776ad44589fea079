"""Detach constant tensors from the tensors that they copy sizes from."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, Use
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern
from xdsl.rewriter import InsertPoint

from ..dialects.aten import AtenOp
from ..dialects.compute import ComputeOp, plain_attribute, shape_of
from ..dialects.placed import element_of
from .step.new_ops import like
from .step.requirements import require_undecided
from .step.step_view import step_functions

_FILLED = {"new_full": "fill_value", "full_like": "fill_value", "fill.Scalar": "value"}
"""The ops that fill a tensor with one number, with the name of the argument that is the number."""

_MADE = {
    "new_zeros": "zeros",
    "new_ones": "ones",
    "new_empty": "empty.memory_format",
    "zeros_like": "zeros",
    "ones_like": "ones",
    "empty_like": "empty.memory_format",
    **dict.fromkeys(_FILLED, "full"),
}
"""The ops that read only the shape and dtype of an operand, with the ops that take both as arguments."""


class _Detach(RewritePattern):
    """new_zeros(x, sizes) -> zeros(sizes)."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, AtenOp) or op.overload not in _MADE or len(op.args) != 1:
            return
        result = op.outs[0]
        fields = {"size": plain_attribute(shape_of(result)), "dtype": element_of(result)}
        if (filled := _FILLED.get(op.overload)) is not None:
            fields["fill_value"] = op.attributes[filled]
        rewriter.replace(op, like(op, _MADE[op.overload], [], [shape_of(result)], result.name_hint or "made", **fields))


def _adds_into(use: Use) -> bool:
    """Return whether an op adds its part of a sum to the value, once on all devices."""
    user = use.operation
    return isinstance(user, ComputeOp) and use.index in user.rule().additive


class _MakeForEach(RewritePattern):
    """z = zeros(sizes), add_into(z, a), add_into(z, b) -> add_into(zeros(sizes), a), add_into(zeros(sizes), b)."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, AtenOp) or op.args or frozenset[int]() not in op.rule().linear:
            return
        uses = list(op.outs[0].uses)
        into = [use for use in uses if _adds_into(use)]
        for use in into if len(into) < len(uses) else into[1:]:
            copy = op.clone()
            copy.results[0].name_hint = op.outs[0].name_hint
            rewriter.insert(copy, InsertPoint.before(use.operation))
            use.operation.operands[use.index] = copy.results[0]
            rewriter.notify_op_modified(use.operation)


@dataclass(frozen=True)
class DetachFactoriesPass(ModulePass):
    """
    Create constant tensors from their sizes alone, without an operand that is only read for its shape and dtype.

    `x.new_zeros(sizes)`, `zeros_like(x)` and similar ops take `x` as an operand, so it would be gathered, or waited
    for, in vain. Without the operand, every device and every micro-batch creates just the part that it uses.

    Requires: a step without signatures; run it before `search-strategy`, and after `cse`, which would otherwise merge
    all zeros of one shape into one tensor that lives from the first use to the last and is copied for each.
    Ensures: all ops read elements of their operands. Ops that add into common zeros get zeros of their own, so that
    they can add partial sums, on each device or in each micro-batch.

    Before:
    ```mlir
    func.func @f(%x: tensor<8x4xf32>, %i: tensor<8x1xi64>, %g: tensor<8x1xf32>) -> tensor<8x16xf32> {
      %z = aten.new_zeros %x {size = [8 : i64, 16 : i64]} : (tensor<8x4xf32>) -> tensor<8x16xf32>
      %y = aten.scatter.src %z, %i, %g {dim = 1 : i64}
        : (tensor<8x16xf32>, tensor<8x1xi64>, tensor<8x1xf32>) -> tensor<8x16xf32>
      func.return %y : tensor<8x16xf32>
    }
    ```

    After:
    ```mlir
    func.func @f(%x: tensor<8x4xf32>, %i: tensor<8x1xi64>, %g: tensor<8x1xf32>) -> tensor<8x16xf32> {
      %z = aten.zeros {size = [8 : i64, 16 : i64], dtype = f32} : () -> tensor<8x16xf32>
      %y = aten.scatter.src %z, %i, %g {dim = 1 : i64}
        : (tensor<8x16xf32>, tensor<8x1xi64>, tensor<8x1xf32>) -> tensor<8x16xf32>
      func.return %y : tensor<8x16xf32>
    }
    ```

    Source: factories; the dispatch of GShard and Switch, which pads the capacity of experts with zeros.
    """

    name = "detach-factories"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every such op of the module."""
        for func in step_functions(op):
            require_undecided(func, self.name)
        PatternRewriteWalker(_Detach(), apply_recursively=False).rewrite_module(op)
        PatternRewriteWalker(_MakeForEach(), apply_recursively=False).rewrite_module(op)
