"""Decompose cross-entropies so that their classes can be split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern

from ..dialects.aten import AtenOp
from ..dialects.placed import element_of, shape_of
from .step.new_ops import like
from .step.requirements import require_not_lowered
from .step.step_view import step_functions

_NONE, _SUM = 0, 2
"""ATen's codes of the reductions of a loss."""

_LOSS_BACKWARD, _SOFTMAX_BACKWARD = "nll_loss_backward", "_log_softmax_backward_data"


@dataclass(frozen=True)
class _Users:
    """The users of a log-softmax: losses, and gradients of losses mapped to the gradient of the log-softmax."""

    losses: list[AtenOp] = field(default_factory=list[AtenOp])
    gradients: dict[AtenOp, AtenOp] = field(default_factory=dict[AtenOp, AtenOp])


class SplitClasses(RewritePattern):
    """nll_loss(log_softmax(x)) -> log(sum(exp(x - max(x)))) + max(x) - x[label], and its gradient."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        """Match a log-softmax that only losses use."""
        if not isinstance(op, AtenOp) or op.overload != "_log_softmax" or (users := _users(op)) is None:
            return
        scores, maker = op.args[0], _CrossEntropyMaker(op, op.args[0])
        largest = maker.per_row("amax", [scores], "max", dim=_integers(1))
        total = maker.per_row("sum_exp", [scores, largest], "sum")
        log = maker.per_row("log", [total], "log")
        logsumexp = maker.per_row("add.Tensor", [log, largest], "logsumexp")
        rewriter.insert(maker.made)
        for of_loss, of_softmax in users.gradients.items():
            rewriter.replace(of_softmax, _gradient(of_loss, of_softmax, scores, logsumexp))
            rewriter.erase(of_loss)
        for loss in users.losses:
            rewriter.replace(loss, *_loss(loss, scores, logsumexp))
        rewriter.erase(op)


class _CrossEntropyMaker:
    """A builder of the ops that replace `op`, most of them with one number per row of scores [rows, classes]."""

    def __init__(self, op: AtenOp, scores: SSAValue) -> None:
        self.op, self.made = op, list[AtenOp]()
        self.hint = op.outs[0].name_hint or "loss"
        self.rows, _ = shape_of(scores)

    def make(
        self,
        name: str,
        operands: Sequence[SSAValue],
        shape: Sequence[int],
        suffix: str,
        **given: Attribute,
    ) -> SSAValue:
        """Add an op whose result has this shape."""
        self.made.append(like(self.op, name, operands, [shape], f"{self.hint}.{suffix}", **given))
        return self.made[-1].outs[0]

    def per_row(self, name: str, operands: Sequence[SSAValue], suffix: str, **given: Attribute) -> SSAValue:
        """Add an op whose result has a number per row."""
        return self.make(name, operands, [self.rows], suffix, **given)

    def counted(self, value: SSAValue, loss: AtenOp, suffix: str) -> SSAValue:
        """Return a number per row, times the weight of the row's label if there are weights; 0 for ignored labels."""
        named = dict(zip(loss.operand_names(), loss.args, strict=True))
        target, other = named["target"], IntegerAttr(loss.arguments().get("ignore_index", -100), i64)
        ignored = self.per_row("eq.Scalar", [target], "ignored", other=other)
        if (weight := named.get("weight")) is not None:
            first = IntegerAttr(0, i64)
            legal = self.per_row("masked_fill.Scalar", [target, ignored], "legal", value=first)
            weights = self.per_row("index_select", [weight, legal], "weights", dim=first)
            value = self.per_row("mul.Tensor", [weights, value], "weighted")
        return self.per_row("masked_fill.Scalar", [value, ignored], suffix, value=FloatAttr(0.0, 64))


def _loss(loss: AtenOp, scores: SSAValue, logsumexp: SSAValue) -> tuple[Sequence[Operation], Sequence[SSAValue | None]]:
    """Return the ops that replace a loss, and the values of its two results."""
    maker = _CrossEntropyMaker(loss, scores)
    counted = maker.counted(logsumexp, loss, "kept")
    arguments = {name: value for name, value in loss.attributes.items() if "." not in name}
    arguments["reduction"] = IntegerAttr(_NONE, i64)
    shapes = [[maker.rows], shape_of(loss.outs[1])]
    picked = like(loss, loss.overload, [scores, *loss.args[1:]], shapes, f"{maker.hint}.picked", **arguments)
    picked.outs[1].name_hint = loss.outs[1].name_hint
    maker.made.append(picked)
    result = maker.per_row("add.Tensor", [counted, picked.outs[0]], "rows")
    if loss.arguments()["reduction"] == _SUM:
        result = maker.make("sum", [result], [], "sum")
    result.name_hint = loss.outs[0].name_hint
    return maker.made, [result, None]


def _gradient(of_loss: AtenOp, of_softmax: AtenOp, scores: SSAValue, logsumexp: SSAValue) -> Sequence[Operation]:
    maker = _CrossEntropyMaker(of_softmax, scores)
    grad, target = of_loss.args[0], of_loss.args[2]
    if not shape_of(grad):
        grad = maker.per_row("expand", [grad], "expanded", size=_integers(maker.rows))
    grad = maker.counted(grad, of_loss, "rows")
    result = of_softmax.outs[0]
    operands = [grad, scores, logsumexp, target]
    new = like(of_softmax, "cross_entropy_backward", operands, [shape_of(result)], maker.hint)
    return [*maker.made, new]


def _users(softmax: AtenOp) -> _Users | None:
    """Return the users of a log-softmax over the classes of rows, or None if its form or a user is not supported."""
    scores, logarithms = softmax.args[0], softmax.outs[0]
    if scores.type != logarithms.type or not isinstance(element_of(scores), Float32Type | Float64Type):
        return None
    if len(shape_of(scores)) != 2 or softmax.arguments()["dim"] not in (1, -1):
        return None
    users, of_softmax = _Users(), set[Operation]()
    for use in logarithms.uses:
        op = use.operation
        if _is_loss(op, "nll_loss_forward"):
            users.losses.append(op)
        elif _is_loss(op, _LOSS_BACKWARD) and (gradient := _only_user(op)) is not None:
            users.gradients[op] = gradient
        elif isinstance(op, AtenOp) and op.overload == _SOFTMAX_BACKWARD:
            of_softmax.add(op)
        else:
            return None
    return users if of_softmax == set(users.gradients.values()) else None


def _is_loss(op: Operation, overload: str) -> TypeGuard[AtenOp]:
    """Return whether `op` is a loss that can be rewritten, forward or backward."""
    if not isinstance(op, AtenOp) or op.overload != overload:
        return False
    # `decompose-mean` counts labels separately; only the gradient takes the count, and it ignores the value.
    counts = (use.operation for count in op.outs[1:] for use in count.uses)
    return op.arguments().get("reduction") in (_NONE, _SUM) and all(
        isinstance(user, AtenOp) and user.overload == _LOSS_BACKWARD for user in counts
    )


def _only_user(of_loss: AtenOp) -> AtenOp | None:
    """Return the gradient of the log-softmax if it is the only user of a gradient of the loss."""
    users = [use.operation for use in of_loss.outs[0].uses]
    if len(users) == 1 and isinstance(op := users[0], AtenOp) and op.overload == _SOFTMAX_BACKWARD:
        return op
    return None


def _integers(*numbers: int) -> ArrayAttr[IntegerAttr]:
    return ArrayAttr([IntegerAttr(number, i64) for number in numbers])


@dataclass(frozen=True)
class DecomposeCrossEntropyPass(ModulePass):
    """
    Write every cross-entropy as the logarithm of a sum over classes and one score of each row, so that classes can be
    split.

    A log-softmax needs all classes of a row on one device, so a vocabulary that is split over devices would be gathered
    for it. Here only a maximum, a sum and a score per row cross devices. The gradient needs no further communication,
    because the logarithm of the sum is kept. Without a split, this form saves the logarithms of all probabilities, but
    is slower than the fused ops on a CPU: by half with 50,257 classes, by a factor of two with a thousand.

    Requires: `decompose-mean`, because a mean over labels is not rewritten.
    Ensures: a cross-entropy over the last dim of [rows, classes] in single or double precision, with sum reduction or
    none, becomes `aten.amax`, `aten.sum_exp` and an `aten.nll_loss_forward` of the scores; its gradient is one
    `aten.cross_entropy_backward`. A log-softmax with other users stays.

    Before:
    ```mlir
    func.func @loss(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>, %g: tensor<f32>)
        -> (tensor<f32>, tensor<8x10xf32>) {
      %log = aten._log_softmax %scores {dim = 1 : i64, half_to_float = false}
        : (tensor<8x10xf32>) -> tensor<8x10xf32>
      %loss, %count = aten.nll_loss_forward %log, %labels
        {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
        : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<f32>, tensor<f32>)
      %log.grad = aten.nll_loss_backward %g, %log, %labels, %count
        {reduction = 2 : i64, ignore_index = -100 : i64, absent = ["weight"]}
        : (tensor<f32>, tensor<8x10xf32>, tensor<8xi64>, tensor<f32>) -> tensor<8x10xf32>
      %grad = aten._log_softmax_backward_data %log.grad, %log {dim = 1 : i64, input_dtype = f32}
        : (tensor<8x10xf32>, tensor<8x10xf32>) -> tensor<8x10xf32>
      func.return %loss, %grad : tensor<f32>, tensor<8x10xf32>
    }
    ```

    After:
    ```mlir
    func.func @loss(%scores: tensor<8x10xf32>, %labels: tensor<8xi64>, %g: tensor<f32>)
        -> (tensor<f32>, tensor<8x10xf32>) {
      %log.max = aten.amax %scores {dim = [1 : i64]} : (tensor<8x10xf32>) -> tensor<8xf32>
      %log.sum = aten.sum_exp %scores, %log.max : (tensor<8x10xf32>, tensor<8xf32>) -> tensor<8xf32>
      %log.log = aten.log %log.sum : (tensor<8xf32>) -> tensor<8xf32>
      %log.logsumexp = aten.add.Tensor %log.log, %log.max : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %loss.ignored = aten.eq.Scalar %labels {other = -100 : i64} : (tensor<8xi64>) -> tensor<8xi1>
      %loss.kept = aten.masked_fill.Scalar %log.logsumexp, %loss.ignored {value = 0.000000e+00 : f64}
        : (tensor<8xf32>, tensor<8xi1>) -> tensor<8xf32>
      %loss.picked, %count = aten.nll_loss_forward %scores, %labels
        {reduction = 0 : i64, ignore_index = -100 : i64, absent = ["weight"]}
        : (tensor<8x10xf32>, tensor<8xi64>) -> (tensor<8xf32>, tensor<f32>)
      %loss.rows = aten.add.Tensor %loss.kept, %loss.picked : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %loss = aten.sum %loss.rows : (tensor<8xf32>) -> tensor<f32>
      %grad.expanded = aten.expand %g {size = [8 : i64]} : (tensor<f32>) -> tensor<8xf32>
      %grad.ignored = aten.eq.Scalar %labels {other = -100 : i64} : (tensor<8xi64>) -> tensor<8xi1>
      %grad.rows = aten.masked_fill.Scalar %grad.expanded, %grad.ignored {value = 0.000000e+00 : f64}
        : (tensor<8xf32>, tensor<8xi1>) -> tensor<8xf32>
      %grad = aten.cross_entropy_backward %grad.rows, %scores, %log.logsumexp, %labels
        : (tensor<8xf32>, tensor<8x10xf32>, tensor<8xf32>, tensor<8xi64>) -> tensor<8x10xf32>
      func.return %loss, %grad : tensor<f32>, tensor<8x10xf32>
    }
    ```

    Source: Megatron-LM (Shoeybi et al. 2019), section 3; AutoDDL 4.2 finds the split.
    """

    name = "decompose-cross-entropy"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all cross-entropies of the module."""
        for func in step_functions(op):
            require_not_lowered(func, self.name)
        PatternRewriteWalker(SplitClasses(), apply_recursively=False).rewrite_module(op)
