"""Clip gradients by their norm or by value."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, UnitAttr, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects.compute import dtype_of, sum_dtype
from ..dialects.placed import shape_of
from ..dialects.train import EACH_GRADIENT
from .step.gradients import Insertion, add_metric, gradient_users, gradients, hint_of, replace_gradient
from .step.requirements import require_not_lowered
from .step.step_view import step_functions

NORM = "grad_norm"
"""The name of the norm among the metrics of a step."""

_SQUARES = f"{NORM}.squares"

_SMALL = 1e-6
"""The number that torch adds to the norm before dividing by it."""

_EACH = {EACH_GRADIENT: UnitAttr()}


@dataclass(frozen=True)
class ClipGradientsPass(ModulePass):
    """
    Scale all gradients down if their norm is too large, or bound each of their elements, before the updates.

    The norm is the norm of all gradients together, as on one device. The sum of squares of a split gradient is a
    partial sum, so the search decides where it is reduced. The step returns the norm as the metric `grad_norm`.

    Requires: gradients that are computed before the first update.
    Ensures: every update takes a clipped gradient.

    Before:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %g: tensor<8xf32>, %n: tensor<f32> {train.step_count},
        %lr: tensor<f32> {train.learning_rate}) -> (tensor<8xf32> {train.updates = 0 : i64}) {
      %w.new = train.sgd %w, %g, %n, %lr {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new : tensor<8xf32>
    }
    ```

    Pipeline: clip-gradients{norm=1.0}

    After:
    ```mlir
    func.func @step(%w: tensor<8xf32> {train.param = "w"}, %g: tensor<8xf32>, %n: tensor<f32> {train.step_count},
        %lr: tensor<f32> {train.learning_rate})
        -> (tensor<8xf32> {train.updates = 0 : i64}, tensor<f32> {train.metric = "grad_norm"}) {
      %g.squared = aten.mul.Tensor %g, %g {train.each_gradient} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %g.squares = aten.sum %g.squared {train.each_gradient} : (tensor<8xf32>) -> tensor<f32>
      %grad_norm = aten.sqrt %g.squares : (tensor<f32>) -> tensor<f32>
      %grad_norm.above = aten.add.Scalar %grad_norm {other = 1.0e-6 : f64} : (tensor<f32>) -> tensor<f32>
      %grad_norm.inverse = aten.reciprocal %grad_norm.above : (tensor<f32>) -> tensor<f32>
      %grad_scale.free = aten.mul.Scalar %grad_norm.inverse {other = 1.0 : f64} : (tensor<f32>) -> tensor<f32>
      %grad_scale = aten.clamp_max %grad_scale.free {max = 1.0 : f64} : (tensor<f32>) -> tensor<f32>
      %g.clipped = aten.mul.Tensor %g, %grad_scale {train.each_gradient} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %w.new = train.sgd %w, %g.clipped, %n, %lr {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new, %grad_norm : tensor<8xf32>, tensor<f32>
    }
    ```

    Source: torch.nn.utils.clip_grad_norm_ and clip_grad_value_.
    """

    name = "clip-gradients"

    norm: int | float | None = None
    """Upper bound of the norm of all gradients together."""

    value: int | float | None = None
    """Upper bound of the absolute value of each element of a gradient."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for name, limit in (("norm", self.norm), ("value", self.value)):
            if limit is not None and not limit > 0:
                raise PassFailedException(f"clip-gradients: {name}={limit}, expected a number above 0")
        for func in step_functions(op):
            require_not_lowered(func, self.name)
            if self.value is not None:
                _bound(func, float(self.value))
            if self.norm is not None:
                _scale(func, float(self.norm))


def _bound(func: FuncOp, limit: float) -> None:
    if not (updates := gradient_users(func)):
        return
    insertion = Insertion(updates[0])
    limits = {"min": FloatAttr(-limit, 64), "max": FloatAttr(limit, 64)}
    old = gradients(func, updates, ClipGradientsPass.name)
    clipped = [insertion.add("clamp", [g], shape_of(g), f"{hint_of(g)}.clipped", **limits) for g in old]
    insertion.insert(func, updates[0])
    for gradient, new in zip(old, clipped, strict=True):
        replace_gradient(func, gradient, new, updates)


def _scale(func: FuncOp, limit: float) -> None:
    if not (updates := gradient_users(func)):
        return
    insertion, old = Insertion(updates[0]), gradients(func, updates, ClipGradientsPass.name)
    total: SSAValue | None = None
    for gradient in old:
        hint, narrow = hint_of(gradient), sum_dtype(dtype_of(gradient)) != dtype_of(gradient)
        square = insertion.add("mul.Tensor", [gradient, gradient], shape_of(gradient), f"{hint}.squared", **_EACH)
        dtype = {"dtype": f32} if narrow else {}
        squares = insertion.add("sum", [square], (), f"{hint}.squares", **dtype, **_EACH)
        total = squares if total is None else insertion.add("add.Tensor", [total, squares], (), _SQUARES, **_EACH)
    assert total is not None, "an update takes a gradient"
    norm = insertion.add("sqrt", [total], (), NORM)
    above = insertion.add("add.Scalar", [norm], (), f"{NORM}.above", other=FloatAttr(_SMALL, 64))
    inverse = insertion.add("reciprocal", [above], (), f"{NORM}.inverse")
    free = insertion.add("mul.Scalar", [inverse], (), "grad_scale.free", other=FloatAttr(limit, 64))
    scale = insertion.add("clamp_max", [free], (), "grad_scale", max=FloatAttr(1.0, 64))
    clipped = [insertion.scaled(g, scale, f"{hint_of(g)}.clipped", **_EACH) for g in old]
    insertion.insert(func, updates[0])
    for gradient, new in zip(old, clipped, strict=True):
        replace_gradient(func, gradient, new, updates)
    add_metric(func, norm, NORM)
