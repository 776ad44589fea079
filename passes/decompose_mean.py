"""Decompose means and mean losses into a sum and a count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, ModuleOp, f32, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
)

from ..dialects.aten import AtenOp
from ..dialects.compute import ELEMENTS, dtype_of, sum_dtype
from ..dialects.placed import element_of, shape_of
from ..ir.ops.common import wrapped
from .step.new_ops import cast, like
from .step.requirements import require_not_lowered
from .step.step_view import step_functions

_MEAN, _SUM = 1, 2
"""ATen's codes of the reductions of a loss."""

_FORWARD = ("nll_loss_forward", "nll_loss2d_forward")
_BACKWARD = ("nll_loss_backward", "nll_loss2d_backward")


class MeanToSum(RewritePattern):
    """mean(x) -> sum(x) / n."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        """Match `aten.mean` and `aten.mean.dim`."""
        if not isinstance(op, AtenOp) or op.overload not in ("mean", "mean.dim"):
            return
        source, result = op.args[0], op.outs[0]
        shape = shape_of(source)
        count = math.prod(shape[dim] for dim in wrapped(op.arguments().get("dim"), len(shape)))
        arguments = {name: op.attributes[name] for name in ("dim", "keepdim", "dtype") if name in op.attributes}
        hint = result.name_hint or "mean"
        if (wide := sum_dtype(dtype_of(result))) != dtype_of(result):
            arguments["dtype"] = ELEMENTS[wide]
        name, sizes = "sum.dim_IntList" if op.overload == "mean.dim" else "sum", [shape_of(result)]
        total = like(op, name, [source], sizes, f"{hint}.sum", **arguments)
        mean = like(op, "div.Scalar", [total.outs[0]], sizes, hint, other=FloatAttr(float(count), 64))
        rewriter.replace(op, [total, mean, *cast(op, mean.outs[0], element_of(result), hint)])


class CrossEntropyToSum(RewritePattern):
    """
    nll_loss(mean) -> nll_loss(sum) / count, where the count is computed from labels (and class weights) alone.

    The gradient of a sum takes this count too, although it ignores the value: the op's own count would delay it until
    the loss is complete.
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        """Match the forward op of mean reduction, or one whose count is used."""
        if not isinstance(op, AtenOp) or op.overload not in _FORWARD:
            return
        loss, weight = op.outs
        is_mean = op.arguments().get("reduction") == _MEAN
        if not is_mean and not tuple(weight.uses):
            return
        counting = _count_labels(op)
        count = counting[-1].outs[0]
        if not is_mean:
            counted = [*counting, *cast(op, count, element_of(weight), "count")]
            rewriter.insert(counted)
            weight.replace_all_uses_with(counted[-1].outs[0])
            return
        hint = loss.name_hint or "loss"
        # The sum and the count of many losses overflow in float16.
        narrow = {value for value in op.args if dtype_of(value) == "float16"}
        wide = {value: cast(op, value, f32, f"{hint}.wide")[0] for value in narrow}
        operands = [wide[value].outs[0] if value in wide else value for value in op.args]
        total = like(op, op.overload, operands, [shape_of(loss), shape_of(weight)], f"{hint}.sum", **_as_sum(op))
        total.outs[1].name_hint = weight.name_hint
        mean = like(op, "div.Tensor", [total.outs[0], count], [shape_of(loss)], hint)
        ops = [*wide.values(), *counting, total, mean, *cast(op, mean.outs[0], element_of(loss), hint)]
        rewriter.replace(op, ops, [ops[-1].outs[0], count])


class CrossEntropyGradient(RewritePattern):
    """nll_loss_backward(grad, mean) -> nll_loss_backward(grad / count, sum)."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        """Match the backward op of mean reduction."""
        if not isinstance(op, AtenOp) or op.overload not in _BACKWARD or op.arguments().get("reduction") != _MEAN:
            return
        grad, count = op.args[0], op.args[-1]
        hint = f"{grad.name_hint or 'grad'}.mean"
        scaled = like(op, "div.Tensor", [grad, count], [shape_of(grad)], hint)
        # Torch requires one dtype for all operands, including the count that sum reduction ignores.
        divided = [scaled, *cast(op, scaled.outs[0], element_of(grad), hint)]
        counts = cast(op, count, element_of(op.args[1]), "count")
        operands = [divided[-1].outs[0], *op.args[1:-1], counts[0].outs[0] if counts else count]
        result = op.outs[0]
        new = like(op, op.overload, operands, [shape_of(result)], result.name_hint or "grad", **_as_sum(op))
        rewriter.replace(op, [*divided, *counts, new])


def _as_sum(op: AtenOp) -> dict[str, Attribute]:
    arguments = {name: value for name, value in op.attributes.items() if "." not in name}
    return {**arguments, "reduction": IntegerAttr(_SUM, i64)}


def _count_labels(op: AtenOp) -> list[AtenOp]:
    """Return ops that count the labels that are not ignored, or sum their weights, in the dtype of sums of losses."""
    named = dict(zip(op.operand_names(), op.args, strict=True))
    target, dtype = named["target"], sum_dtype(dtype_of(op.outs[0]))
    ignored = IntegerAttr(op.arguments().get("ignore_index", -100), i64)
    ops: list[AtenOp] = []

    def make(name: str, operands: list[SSAValue], shape: Sequence[int], hint: str, **given: Attribute) -> SSAValue:
        ops.append(like(op, name, operands, [shape], hint, **given))
        return ops[-1].outs[0]

    shape, hint = shape_of(target), f"{target.name_hint or 'labels'}.counted"
    if (weight := named.get("weight")) is None:
        counted = make("sum", [make("ne.Scalar", [target], shape, "valid", other=ignored)], (), hint)
        return [*ops, *cast(op, counted, ELEMENTS[dtype], "count")]
    if len(shape) != 1:
        shape = (math.prod(shape),)
        target = make("view", [target], shape, "labels", size=ArrayAttr([IntegerAttr(shape[0], i64)]))
    left_out = make("eq.Scalar", [target], shape, "ignored", other=ignored)
    legal = make("masked_fill.Scalar", [target, left_out], shape, "legal", value=IntegerAttr(0, i64))
    weights = make("index_select", [weight, legal], shape, "weights", dim=IntegerAttr(0, i64))
    valid = make("masked_fill.Scalar", [weights, left_out], shape, hint, value=FloatAttr(0.0, 64))
    make("sum", [valid], (), "count", **({"dtype": ELEMENTS[dtype]} if dtype != dtype_of(weight) else {}))
    return ops


@dataclass(frozen=True)
class DecomposeMeanPass(ModulePass):
    """
    Write every mean as a sum and a count, so that its parts add up however they are split.

    Requires: nothing.
    Ensures: all `aten.mean` and all cross-entropies with mean reduction are sums and counts. The count of a
    cross-entropy (of the labels that are not ignored) is computed from the labels alone, so that it can be computed
    before any loop over micro-batches: a mean of the means of parts is not the mean.

    Before:
    ```mlir
    func.func @loss(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>) -> tensor<f32> {
      %loss, %weight = aten.nll_loss_forward %scores, %labels
        {reduction = 1 : i64, ignore_index = -100 : i64, absent = ["weight"]}
        : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
      func.return %loss : tensor<f32>
    }
    ```

    After:
    ```mlir
    func.func @loss(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>) -> tensor<f32> {
      %valid = aten.ne.Scalar %labels {other = -100 : i64} : (tensor<8xi64>) -> tensor<8xi1>
      %labels.counted = aten.sum %valid : (tensor<8xi1>) -> tensor<i64>
      %count = aten._to_copy %labels.counted {dtype = f32} : (tensor<i64>) -> tensor<f32>
      %loss.sum, %weight = aten.nll_loss_forward %scores, %labels
        {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
        : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
      %loss = aten.div.Tensor %loss.sum, %count : (tensor<f32>, tensor<f32>) -> tensor<f32>
      func.return %loss : tensor<f32>
    }
    ```

    Source: HAP 5.1 (uneven shares need it) and HiDup 3 (micro-batches do).
    """

    name = "decompose-mean"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all means of the module."""
        for func in step_functions(op):
            require_not_lowered(func, self.name)
        patterns: list[RewritePattern] = [MeanToSum(), CrossEntropyToSum(), CrossEntropyGradient()]
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns), apply_recursively=False).rewrite_module(op)
