"""Skip all changes of a step whose loss or gradients are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from ..dialects import train
from ..dialects.placed import shape_of
from .step.gradients import Insertion, add_metric, any_not_finite, clip_of, gradient_users, gradients, hint_of
from .step.requirements import require_no_skipped_updates, require_undecided
from .step.step_view import step_functions

SKIPPED = "skipped"
"""The metric that is 1 for a skipped step, and 0 otherwise."""


@dataclass(frozen=True)
class SkipNonFinitePass(ModulePass):
    """
    Let a step whose loss or gradients are not finite change nothing: no parameter, state or buffer, and no count.

    One sum over the numbers of finite elements decides for all updates, so all devices skip the same steps. It is
    partial where gradients are split, and the search decides where it is reduced. The metric `skipped` reports the
    decision.

    Requires: a captured step before any decision, with all gradients before the first update. Do not combine it with
    `scale-loss`, which also skips updates.
    Ensures: every update takes `found_inf`; buffers keep their values if a step is skipped.

    Before:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %m: tensor<8xf32> {train.buffer = "mean"},
        %x: tensor<8xf32> {train.batch = "0"}, %n: tensor<f32> {train.step_count},
        %lr: tensor<f32> {train.learning_rate}) -> (tensor<f32> {train.loss},
        tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
      %g = aten.mul.Tensor %x, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %loss = aten.sum %g : (tensor<8xf32>) -> tensor<f32>
      %m.new = aten.add.Tensor %m, %x : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %w.new = train.sgd %w, %g, %n, %lr {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %loss, %w.new, %m.new : tensor<f32>, tensor<8xf32>, tensor<8xf32>
    }
    ```

    After:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %m: tensor<8xf32> {train.buffer = "mean"},
        %x: tensor<8xf32> {train.batch = "0"}, %n: tensor<f32> {train.step_count},
        %lr: tensor<f32> {train.learning_rate}) -> (tensor<f32> {train.loss},
        tensor<8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64},
        tensor<f32> {train.metric = "skipped"}) {
      %g = aten.mul.Tensor %x, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %loss = aten.sum %g : (tensor<8xf32>) -> tensor<f32>
      %m.new = aten.add.Tensor %m, %x : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %loss.finite = aten.isfinite %loss : (tensor<f32>) -> tensor<i1>
      %loss.finite.count = aten.sum %loss.finite : (tensor<i1>) -> tensor<i64>
      %g.finite = aten.isfinite %g : (tensor<8xf32>) -> tensor<8xi1>
      %g.finite.count = aten.sum %g.finite : (tensor<8xi1>) -> tensor<i64>
      %finite.count = aten.add.Tensor %loss.finite.count, %g.finite.count : (tensor<i64>, tensor<i64>) -> tensor<i64>
      %skips = aten.ne.Scalar %finite.count {other = 9 : i64} : (tensor<i64>) -> tensor<i1>
      %found_inf = aten._to_copy %skips {dtype = f32} : (tensor<i1>) -> tensor<f32>
      %w.new = train.sgd %w, %g, %n, %lr, %found_inf {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      %m.new.kept = aten.where.self %skips, %m, %m.new
        : (tensor<i1>, tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      func.return %loss, %w.new, %m.new.kept, %found_inf : tensor<f32>, tensor<8xf32>, tensor<8xf32>, tensor<f32>
    }
    ```

    Source: torch.amp.GradScaler, which skips updates the same way.
    """

    name = "skip-non-finite"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for func in step_functions(op):
            if updates := gradient_users(func):
                require_undecided(func, self.name)
                require_no_skipped_updates(func, self.name)
                _run(func, updates)


def _run(func: FuncOp, updates: Sequence[Operation]) -> None:
    updating = [op for op in func.body.block.ops if isinstance(op, train.TrainOp)]
    insertion = Insertion(updates[0])
    taken = gradients(func, updates, SkipNonFinitePass.name)
    # Gradients are checked before the clip, because a bound turns infinity into a finite number.
    unclipped = [clip.args[0] if (clip := clip_of(gradient)) else gradient for gradient in taken]
    skips = any_not_finite(insertion, [*_losses(func), *unclipped])
    found_inf = insertion.add("_to_copy", [skips], (), train.FOUND_INF, dtype=f32)
    insertion.insert_before_updates(func)
    for op in updating:
        op.operands = [*op.operands, found_inf]
    _keep_buffers(func, skips, Insertion(updates[0]))
    add_metric(func, found_inf, SKIPPED)


def _losses(func: FuncOp) -> list[SSAValue]:
    end, roles = func.body.block.last_op, func.res_attrs
    assert isinstance(end, ReturnOp)
    return [end.operands[at] for at, attrs in enumerate(roles.data if roles else ()) if train.LOSS in attrs.data]


def _keep_buffers(func: FuncOp, skips: SSAValue, made: Insertion) -> None:
    """Return the old value of each buffer if the step is skipped."""
    end, roles, arguments = func.body.block.last_op, func.res_attrs, func.arg_attrs
    assert isinstance(end, ReturnOp)
    returned = list(end.operands)
    for at, role in enumerate(roles.data if roles is not None else ()):
        index = role.data.get(train.UPDATES)
        if not isinstance(index, IntegerAttr) or arguments is None:
            continue
        if train.BUFFER in arguments.data[index.value.data].data:
            old, new = func.body.block.args[index.value.data], returned[at]
            returned[at] = made.add("where.self", [skips, old, new], shape_of(new), f"{hint_of(new)}.kept")
    made.insert(func, end)
    end.operands = returned
