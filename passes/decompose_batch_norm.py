"""Decompose batch-norms in training into sums over the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, ModuleOp, i64
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
from .step.new_ops import cast, like
from .step.requirements import require_not_lowered
from .step.step_view import step_functions

_FORWARD, _BACKWARD = "_native_batch_norm_legit_functional", "native_batch_norm_backward"


@dataclass
class _BatchNormMaker:
    """A builder of the ops that replace a batch-norm, on its input [n, c, ...] and vectors [c]."""

    op: AtenOp
    made: list[Operation] = field(default_factory=list[Operation])

    def __post_init__(self) -> None:
        self.operands: Mapping[str, SSAValue] = dict(zip(self.op.operand_names(), self.op.args, strict=True))
        self.input = self.operands["input"]
        shape = shape_of(self.input)
        self.dims = [dim for dim in range(len(shape)) if dim != 1]
        self.count = math.prod(shape[dim] for dim in self.dims)
        self.hint = self.op.outs[0].name_hint or "norm"

    def make(self, name: str, operands: Sequence[SSAValue], suffix: str, **given: Attribute) -> SSAValue:
        """Add an op whose result has the shape of its first operand."""
        return self._add(name, operands, shape_of(operands[0]), suffix, given)

    def sum(self, value: SSAValue, suffix: str) -> SSAValue:
        """Add a sum over the batch, [c]; narrow dtypes are summed in float32."""
        arguments: dict[str, Attribute] = {"dim": _integers(self.dims)}
        if (wide := sum_dtype(dtype_of(value))) != dtype_of(value):
            arguments["dtype"] = ELEMENTS[wide]
        return self._add("sum.dim_IntList", [value], shape_of(value)[1:2], suffix, arguments)

    def mean(self, total: SSAValue, suffix: str) -> SSAValue:
        """Add the mean that belongs to a sum over the batch."""
        return self.make("div.Scalar", [total], suffix, other=FloatAttr(float(self.count), 64))

    def broad(self, value: SSAValue) -> SSAValue:
        """Add a view of a vector [c] as [1, c, 1, ...]."""
        shape = [1 if dim != 1 else shape_of(value)[0] for dim in range(len(self.dims) + 1)]
        return self._add("view", [value], shape, f"{value.name_hint}.broad", {"size": _integers(shape)}, whole=True)

    def typed(self, value: SSAValue, like: SSAValue) -> SSAValue:
        """Return a value in the dtype of another."""
        return self._cast(value, element_of(like))

    def wide(self, name: str) -> SSAValue:
        """Return an operand in the dtype of sums, which the forward kernels use whatever its type here."""
        value = self.operands[name]
        return self._cast(value, ELEMENTS[sum_dtype(dtype_of(value))])

    def _cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        self.made += (casts := cast(self.op, value, element, value.name_hint or self.hint))
        return casts[0].outs[0] if casts else value

    def scaled(self, value: SSAValue, factor: float, suffix: str) -> SSAValue:
        return self.make("mul.Scalar", [value], suffix, other=FloatAttr(factor, 64))

    def _add(
        self,
        name: str,
        operands: Sequence[SSAValue],
        shape: Sequence[int],
        suffix: str,
        given: Mapping[str, Attribute],
        *,
        whole: bool = False,
    ) -> SSAValue:
        new = like(self.op, name, operands, [shape], suffix if whole else f"{self.hint}.{suffix}", **given)
        self.made.append(new)
        return new.outs[0]


class BatchNormToSums(RewritePattern):
    """
    batch_norm(x) -> (x - mean) / sqrt(variance + eps) * weight + bias, and both running statistics.
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        """Match the forward op in training."""
        if not isinstance(op, AtenOp) or op.overload != _FORWARD or not op.arguments().get("training"):
            return
        maker, arguments = _BatchNormMaker(op), op.arguments()
        mean = maker.mean(maker.sum(maker.input, "sum"), "mean")
        centred = maker.make("sub.Tensor", [maker.input, maker.broad(mean)], "centred")
        squares = maker.make("mul.Tensor", [centred, centred], "squares")
        variance = maker.mean(maker.sum(squares, "squares.sum"), "variance")
        padded = maker.make("add.Scalar", [variance], "padded", other=FloatAttr(float(arguments["eps"]), 64))
        invstd = maker.make("rsqrt", [padded], "invstd")
        result = maker.make("mul.Tensor", [centred, maker.broad(invstd)], "normal")
        for name, function in (("weight", "mul.Tensor"), ("bias", "add.Tensor")):
            if name in maker.operands:
                result = maker.make(function, [result, maker.broad(maker.operands[name])], name)
        momentum = float(arguments["momentum"])
        unbiased = momentum * maker.count / max(maker.count - 1, 1)
        news = [
            _running(maker, maker.operands["running_mean"], mean, momentum, momentum, "running_mean"),
            _running(maker, maker.operands["running_var"], variance, momentum, unbiased, "running_var"),
        ]
        results = [maker.typed(new, old) for new, old in zip((result, mean, invstd, *news), op.outs, strict=True)]
        for old, new in zip(op.outs, results, strict=True):
            new.name_hint = old.name_hint or new.name_hint
        rewriter.replace(op, maker.made, results)


def _running(
    maker: _BatchNormMaker, before: SSAValue, found: SSAValue, momentum: float, share: float, name: str
) -> SSAValue:
    """Add the update of a running statistic, a weighted sum of the old value and the statistic of the batch."""
    old, added = maker.scaled(before, 1 - momentum, f"{name}.kept"), maker.scaled(found, share, f"{name}.added")
    return maker.make("add.Tensor", [old, added], name)


class BatchNormGradient(RewritePattern):
    """
    grad_x = invstd * weight * (grad - mean(grad) - normal * mean(grad * normal)), with the sums of grad * normal and
    of grad for weight and bias.
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        """Match the backward op in training."""
        if not isinstance(op, AtenOp) or op.overload != _BACKWARD or not op.arguments().get("train"):
            return
        maker = _BatchNormMaker(op)
        grad, invstd = maker.operands["grad_out"], maker.broad(maker.wide("save_invstd"))
        centred = maker.make("sub.Tensor", [maker.input, maker.broad(maker.wide("save_mean"))], "centred")
        normal = maker.make("mul.Tensor", [centred, invstd], "normal")
        weight = maker.sum(maker.make("mul.Tensor", [grad, normal], "products"), "weight_grad")
        bias = maker.sum(grad, "bias_grad")
        along = maker.make("mul.Tensor", [normal, maker.broad(maker.mean(weight, "weight_grad.mean"))], "along")
        left = maker.make("sub.Tensor", [grad, maker.broad(maker.mean(bias, "bias_grad.mean"))], "even")
        left = maker.make("sub.Tensor", [left, along], "across")
        result = maker.make("mul.Tensor", [left, invstd], "scaled")
        if "weight" in maker.operands:
            result = maker.make("mul.Tensor", [result, maker.broad(maker.operands["weight"])], "grad")
        wanted = zip(op.outs, (result, weight, bias), strict=True)
        news = [maker.typed(new, old) if tuple(old.uses) else None for old, new in wanted]
        rewriter.replace(op, maker.made, news)


def _integers(numbers: Sequence[int]) -> ArrayAttr[IntegerAttr]:
    return ArrayAttr([IntegerAttr(number, i64) for number in numbers])


@dataclass(frozen=True)
class DecomposeBatchNormPass(ModulePass):
    """
    Write batch-norms in training as sums over the batch, so that each device normalises by the statistics of the full
    batch.

    If the batch is split over devices, the sums become partial and are reduced: synchronised batch-norm. If it is split
    over time, an unrolled axis (`duplex`) can wait for them half way. The variance is the mean squared distance from
    the mean, computed in a second pass over the input, which keeps its precision; running statistics are updated as
    torch does.

    Requires: nothing; run it before the search.
    Ensures: no batch-norm, forward or backward, takes its statistics from the batch.

    Before:
    ```mlir
    func.func @f(%x: tensor<4x3x2x2xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>)
        -> (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>) {
      %y, %mean, %invstd, %m.new, %v.new = aten._native_batch_norm_legit_functional %x, %m, %v
        {training = true, momentum = 0.25 : f64, eps = 0.5 : f64, absent = ["weight", "bias"]}
        : (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>)
        -> (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
      func.return %y, %m.new, %v.new : tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>
    }
    ```

    After:
    ```mlir
    func.func @f(%x: tensor<4x3x2x2xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>)
        -> (tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>) {
      %y.sum = aten.sum.dim_IntList %x {dim = [0 : i64, 2 : i64, 3 : i64]} : (tensor<4x3x2x2xf32>) -> tensor<3xf32>
      %mean = aten.div.Scalar %y.sum {other = 1.600000e+01 : f64} : (tensor<3xf32>) -> tensor<3xf32>
      %y.mean.broad = aten.view %mean {size = [1 : i64, 3 : i64, 1 : i64, 1 : i64]}
        : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
      %y.centred = aten.sub.Tensor %x, %y.mean.broad
        : (tensor<4x3x2x2xf32>, tensor<1x3x1x1xf32>) -> tensor<4x3x2x2xf32>
      %y.squares = aten.mul.Tensor %y.centred, %y.centred
        : (tensor<4x3x2x2xf32>, tensor<4x3x2x2xf32>) -> tensor<4x3x2x2xf32>
      %y.squares.sum = aten.sum.dim_IntList %y.squares {dim = [0 : i64, 2 : i64, 3 : i64]}
        : (tensor<4x3x2x2xf32>) -> tensor<3xf32>
      %y.variance = aten.div.Scalar %y.squares.sum {other = 1.600000e+01 : f64} : (tensor<3xf32>) -> tensor<3xf32>
      %y.padded = aten.add.Scalar %y.variance {other = 5.000000e-01 : f64} : (tensor<3xf32>) -> tensor<3xf32>
      %invstd = aten.rsqrt %y.padded : (tensor<3xf32>) -> tensor<3xf32>
      %y.invstd.broad = aten.view %invstd {size = [1 : i64, 3 : i64, 1 : i64, 1 : i64]}
        : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
      %y = aten.mul.Tensor %y.centred, %y.invstd.broad
        : (tensor<4x3x2x2xf32>, tensor<1x3x1x1xf32>) -> tensor<4x3x2x2xf32>
      %y.running_mean.kept = aten.mul.Scalar %m {other = 7.500000e-01 : f64} : (tensor<3xf32>) -> tensor<3xf32>
      %y.running_mean.added = aten.mul.Scalar %mean {other = 2.500000e-01 : f64} : (tensor<3xf32>) -> tensor<3xf32>
      %m.new = aten.add.Tensor %y.running_mean.kept, %y.running_mean.added
        : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      %y.running_var.kept = aten.mul.Scalar %v {other = 7.500000e-01 : f64} : (tensor<3xf32>) -> tensor<3xf32>
      %y.running_var.added = aten.mul.Scalar %y.variance {other = 0.26666666666666666 : f64}
        : (tensor<3xf32>) -> tensor<3xf32>
      %v.new = aten.add.Tensor %y.running_var.kept, %y.running_var.added
        : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      func.return %y, %m.new, %v.new : tensor<4x3x2x2xf32>, tensor<3xf32>, tensor<3xf32>
    }
    ```

    Source: Ioffe and Szegedy 2015, algorithm 1, and its gradient; HiDup 3 (duplex cannot split a batch-norm).
    """

    name = "decompose-batch-norm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all batch-norms of the module."""
        for func in step_functions(op):
            require_not_lowered(func, self.name)
        patterns: list[RewritePattern] = [BatchNormToSums(), BatchNormGradient()]
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns), apply_recursively=False).rewrite_module(op)
