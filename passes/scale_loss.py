"""Scale the loss and unscale the gradients of steps in float16."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects import train
from ..dialects.compute import ComputeOp, dtype_of
from ..dialects.placed import element_of, shape_of
from .errors import fail
from .step.gradients import (
    Insertion,
    add_metric,
    add_result,
    any_not_finite,
    clip_of,
    gradient_users,
    gradients,
    hint_of,
)
from .step.gradients import replace_gradient as replace
from .step.new_ops import like
from .step.requirements import require_no_skipped_updates, require_undecided
from .step.step_view import step_functions

SCALE, GROWTH = "loss_scale", "growth_tracker"
"""The states of a step that belong to no parameter: the loss factor, and the number of steps since it changed."""

_NUMBER, _COUNT = TensorType(f32, []), TensorType(i32, [])


@dataclass(frozen=True)
class ScaleLossPass(ModulePass):
    """
    Scale the loss before backward, so that small gradients do not underflow in float16, and unscale gradients after it.

    If an element of any gradient is not finite, the scale was too large: all updates of this step are skipped,
    including the step count, and the scale is reduced. After many steps without a skip it grows. Scale and counter are
    states of the step. The number of finite elements is a sum, which is partial where gradients are split, so the
    search decides where it is reduced. Gradients that are sums over devices or micro-batches are checked once they are
    complete. The step returns the scale of the next step as the metric `loss_scale`.

    Requires: a captured step before any decision, with all gradients before the first update, in float32 or wider. Run
    it before `clip-gradients`, which then clips unscaled gradients.
    Ensures: every update takes an unscaled gradient, and `found_inf`.

    Before:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %x: tensor<8xf32> {train.batch = "0"},
        %n: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate})
        -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<f32> {train.updates = 2 : i64}) {
      %one = aten.full {size = [], fill_value = 1.0 : f64, dtype = f32, train.backward, train.loss_gradient}
        : () -> tensor<f32>
      %g = aten.mul.Tensor %x, %one {train.backward} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %n.new = train.increment %n : (tensor<f32>) -> tensor<f32>
      %w.new = train.sgd %w, %g, %n.new, %lr {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new, %n.new : tensor<8xf32>, tensor<f32>
    }
    ```

    After:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %x: tensor<8xf32> {train.batch = "0"},
        %n: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate},
        %loss_scale: tensor<f32> {train.state = ["", "loss_scale"], train.initial = 65536.0 : f64},
        %growth_tracker: tensor<i32> {train.state = ["", "growth_tracker"]}) -> (tensor<8xf32> {train.updates = 0
        : i64}, tensor<f32> {train.updates = 2 : i64}, tensor<f32> {train.updates = 4 : i64},
        tensor<i32> {train.updates = 5 : i64}, tensor<f32> {train.metric = "loss_scale"}) {
      %one = aten.full {size = [], fill_value = 1.0 : f64, dtype = f32, train.backward,
          train.loss_gradient} : () -> tensor<f32>
      %one.scaled = aten.mul.Tensor %one, %loss_scale {train.backward} : (tensor<f32>, tensor<f32>) -> tensor<f32>
      %g = aten.mul.Tensor %x, %one.scaled {train.backward} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %g.finite = aten.isfinite %g : (tensor<8xf32>) -> tensor<8xi1>
      %g.finite.count = aten.sum %g.finite : (tensor<8xi1>) -> tensor<i64>
      %skips = aten.ne.Scalar %g.finite.count {other = 8 : i64} : (tensor<i64>) -> tensor<i1>
      %found_inf = aten._to_copy %skips {dtype = f32} : (tensor<i1>) -> tensor<f32>
      %loss_scale.exact = aten._to_copy %loss_scale {dtype = f64} : (tensor<f32>) -> tensor<f64>
      %loss_scale.exact_inverse = aten.reciprocal %loss_scale.exact : (tensor<f64>) -> tensor<f64>
      %loss_scale.inverse = aten._to_copy %loss_scale.exact_inverse {dtype = f32} : (tensor<f64>) -> tensor<f32>
      %g.unscaled = aten.mul.Tensor %g, %loss_scale.inverse : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %growth_tracker.counted = aten.add.Scalar %growth_tracker {other = 1 : i64} : (tensor<i32>) -> tensor<i32>
      %loss_scale.due = aten.eq.Scalar %growth_tracker.counted {other = 2000 : i64} : (tensor<i32>) -> tensor<i1>
      %loss_scale.larger = aten.mul.Scalar %loss_scale {other = 2.0 : f64} : (tensor<f32>) -> tensor<f32>
      %loss_scale.smaller = aten.mul.Scalar %loss_scale {other = 0.5 : f64} : (tensor<f32>) -> tensor<f32>
      %loss_scale.fits = aten.isfinite %loss_scale.larger : (tensor<f32>) -> tensor<i1>
      %loss_scale.grows = aten.logical_and %loss_scale.due, %loss_scale.fits : (tensor<i1>,
          tensor<i1>) -> tensor<i1>
      %loss_scale.kept = aten.where.self %loss_scale.grows, %loss_scale.larger, %loss_scale : (tensor<i1>,
          tensor<f32>, tensor<f32>) -> tensor<f32>
      %loss_scale.new = aten.where.self %skips, %loss_scale.smaller, %loss_scale.kept : (tensor<i1>, tensor<f32>,
          tensor<f32>) -> tensor<f32>
      %growth_tracker.none = aten.zeros_like %growth_tracker : (tensor<i32>) -> tensor<i32>
      %growth_tracker.begins = aten.logical_or %loss_scale.due, %skips : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %growth_tracker.new = aten.where.self %growth_tracker.begins, %growth_tracker.none, %growth_tracker.counted
          : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
      %n.new = train.increment %n, %found_inf : (tensor<f32>, tensor<f32>) -> tensor<f32>
      %w.new = train.sgd %w, %g.unscaled, %n.new, %lr, %found_inf {absent = ["momentum_buffer"]} : (tensor<8xf32>,
          tensor<8xf32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new, %n.new, %loss_scale.new, %growth_tracker.new, %loss_scale.new : tensor<8xf32>,
          tensor<f32>, tensor<f32>, tensor<i32>, tensor<f32>
    }
    ```

    Source: torch.amp.GradScaler.
    """

    name = "scale-loss"

    init_scale: int | float = 65536.0
    """The scale of the first step."""

    growth_factor: int | float = 2.0
    """Factor of the scale after `growth_interval` consecutive steps that were not skipped."""

    backoff_factor: int | float = 0.5
    """Factor of the scale after a step that was skipped."""

    growth_interval: int = 2000
    """Number of steps after which the scale grows."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        self.check()
        for func in step_functions(op):
            if updates := gradient_users(func):
                require_undecided(func, self.name)
                require_no_skipped_updates(func, self.name)
                self._run(func, updates)

    def check(self) -> None:
        """Raise PassFailedException for an impossible setting."""
        for name, fits, expected in (
            ("init_scale", 0 < self.init_scale < math.inf, "a number above 0"),
            ("growth_factor", self.growth_factor > 1, "a number above 1"),
            ("backoff_factor", 0 < self.backoff_factor < 1, "a number between 0 and 1"),
            ("growth_interval", self.growth_interval > 0, "a positive whole number"),
        ):
            if not fits:
                raise PassFailedException(f"scale-loss: {name}={getattr(self, name)}, expected {expected}")

    def _run(self, func: FuncOp, updates: Sequence[Operation]) -> None:
        old = gradients(func, updates, self.name)
        if half := next((gradient for gradient in old if dtype_of(gradient) == "float16"), None):
            fail(func, f"the gradient %{hint_of(half)} is in float16 and cannot be unscaled; train in float32")
        if clip := next(filter(None, map(clip_of, old)), None):
            fail(clip, "would clip a gradient of the scaled loss; run scale-loss before clip-gradients")
        scale = _state(func, SCALE, _NUMBER, {train.INITIAL: FloatAttr(float(self.init_scale), 64)})
        growth = _state(func, GROWTH, _COUNT, {})
        _scale_loss(func, scale)
        insertion, updating = Insertion(updates[0]), [op for op in func.body.block.ops if isinstance(op, train.TrainOp)]
        skips = any_not_finite(insertion, old)
        found_inf = insertion.add("_to_copy", [skips], (), train.FOUND_INF, dtype=f32)
        # As in torch, the inverse of a scale that is not a power of two is rounded once.
        exact = insertion.add("_to_copy", [scale], (), f"{SCALE}.exact", dtype=f64)
        inverse = insertion.add("reciprocal", [exact], (), f"{SCALE}.exact_inverse")
        rounded = insertion.add("_to_copy", [inverse], (), f"{SCALE}.inverse", dtype=f32)
        unscaled = [insertion.scaled(g, rounded, f"{hint_of(g)}.unscaled") for g in old]
        new_scale, new_growth = self._adapted(insertion, scale, growth, skips)
        insertion.insert_before_updates(func)
        for gradient, new in zip(old, unscaled, strict=True):
            replace(func, gradient, new, updates)
        for op in updating:
            op.operands = [*op.operands, found_inf]
        add_result(func, new_scale, train.UPDATES, IntegerAttr(scale.index, i64))
        add_result(func, new_growth, train.UPDATES, IntegerAttr(growth.index, i64))
        add_metric(func, new_scale, SCALE)

    def _adapted(
        self, made: Insertion, scale: SSAValue, growth: SSAValue, skips: SSAValue
    ) -> tuple[SSAValue, SSAValue]:
        """Return the scale and the counter after this step."""
        counted = made.add("add.Scalar", [growth], (), f"{GROWTH}.counted", other=IntegerAttr(1, i64))
        interval = IntegerAttr(self.growth_interval, i64)
        due = made.add("eq.Scalar", [counted], (), f"{SCALE}.due", other=interval)
        larger, smaller = (
            made.add("mul.Scalar", [scale], (), f"{SCALE}.{hint}", other=FloatAttr(float(factor), 64))
            for hint, factor in (("larger", self.growth_factor), ("smaller", self.backoff_factor))
        )
        fits = made.add("isfinite", [larger], (), f"{SCALE}.fits")
        grows = made.add("logical_and", [due, fits], (), f"{SCALE}.grows")
        unskipped = made.add("where.self", [grows, larger, scale], (), f"{SCALE}.kept")
        new_scale = made.add("where.self", [skips, smaller, unskipped], (), f"{SCALE}.new")
        none = made.add("zeros_like", [growth], (), f"{GROWTH}.none")
        begins = made.add("logical_or", [due, skips], (), f"{GROWTH}.begins")
        return new_scale, made.add("where.self", [begins, none, counted], (), f"{GROWTH}.new")


def _state(func: FuncOp, name: str, type: TensorType[Attribute], more: Mapping[str, Attribute]) -> BlockArgument:
    """Add an argument that is a state of no parameter, and return it."""
    block = func.body.block
    value = block.insert_arg(type, len(block.args))
    value.name_hint = name
    before = func.arg_attrs.data if func.arg_attrs is not None else (DictionaryAttr({}),) * value.index
    role = {train.STATE: ArrayAttr([StringAttr(""), StringAttr(name)]), **more}
    func.arg_attrs = ArrayAttr([*before, DictionaryAttr(role)])
    func.update_function_type()
    return value


def _scale_loss(func: FuncOp, scale: SSAValue) -> None:
    """Begin backward with the scale instead of 1."""
    begin = next((op for op in func.body.block.ops if train.LOSS_GRADIENT in op.attributes), None)
    if not isinstance(begin, ComputeOp):
        fail(func, "has no op marked train.loss_gradient; run scale-loss on the step as captured")
    gradient, scales = begin.outs[0], list[Operation]()
    if element_of(gradient) != f32:
        scales.append(like(begin, "_to_copy", [scale], [()], f"{SCALE}.cast", dtype=element_of(gradient)))
        scale = scales[-1].results[0]
    scaled = like(begin, "mul.Tensor", [gradient, scale], [shape_of(gradient)], f"{hint_of(gradient)}.scaled")
    gradient.replace_uses_with_if(scaled.outs[0], lambda use: use.operation is not scaled)
    func.body.block.insert_ops_after([*scales, scaled], begin)
