"""The pass `clip-gradients`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, ModuleOp, StringAttr, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects import train
from ..dialects.aten import AtenOp
from ..dialects.compute import dtype_of
from .decompose_mean import like
from .errors import fail
from .search.step_view import step_functions

NORM = "grad_norm"
"""The name of the norm among the metrics of a step."""

_SMALL = 1e-6
"""What torch adds to the norm that it divides by."""

_NARROW = ("bfloat16", "float16")
"""Dtypes whose squares are summed in float32."""


@dataclass(frozen=True)
class ClipGradientsPass(ModulePass):
    """
    Scale all gradients down where their norm is too large, or bound each of their elements, before the updates.

    The norm is that of all gradients together, as on one device: the sum of squares of what is split is a partial sum,
    so the search decides where it is reduced. The step gives it as the metric `grad_norm`.

    Requires: gradients that are there before the first update.
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
      %g.squared = aten.mul.Tensor %g, %g : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %g.squares = aten.sum %g.squared : (tensor<8xf32>) -> tensor<f32>
      %grad_norm = aten.sqrt %g.squares : (tensor<f32>) -> tensor<f32>
      %grad_norm.above = aten.add.Scalar %grad_norm {other = 1.0e-6 : f64} : (tensor<f32>) -> tensor<f32>
      %grad_norm.inverse = aten.reciprocal %grad_norm.above : (tensor<f32>) -> tensor<f32>
      %grad_scale.free = aten.mul.Scalar %grad_norm.inverse {other = 1.0 : f64} : (tensor<f32>) -> tensor<f32>
      %grad_scale = aten.clamp_max %grad_scale.free {max = 1.0 : f64} : (tensor<f32>) -> tensor<f32>
      %g.clipped = aten.mul.Tensor %g, %grad_scale : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %w.new = train.sgd %w, %g.clipped, %n, %lr {absent = ["momentum_buffer"]}
        : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
      func.return %w.new, %grad_norm : tensor<8xf32>, tensor<f32>
    }
    ```

    Source: torch.nn.utils.clip_grad_norm_ and clip_grad_value_.
    """

    name = "clip-gradients"

    norm: int | float | None = None
    """The norm that all gradients together may have at most."""

    value: int | float | None = None
    """What each element of a gradient may be at most, and the negative of what at least."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for name, limit in (("norm", self.norm), ("value", self.value)):
            if limit is not None and not limit > 0:
                raise PassFailedException(f"clip-gradients: {name}={limit}, expected a number above 0")
        for func in step_functions(op):
            if self.value is not None:
                _bound(func, float(self.value))
            if self.norm is not None:
                _scale(func, float(self.norm))


def _updates(func: FuncOp) -> list[Operation]:
    """The ops that take gradients."""
    return [op for op in func.body.block.ops if train.gradients_of(op)]


def _gradients(func: FuncOp, updates: Sequence[Operation]) -> list[SSAValue]:
    """What the updates take, once each; all of it must be there before the first update."""
    places = {op: place for place, op in enumerate(func.body.block.ops)}
    found = list(dict.fromkeys(update.operands[at] for update in updates for at in train.gradients_of(update)))
    for gradient in found:
        if isinstance(gradient, OpResult) and places[gradient.op] > places[updates[0]]:
            fail(gradient.op, "is after the first update; clip-gradients needs all gradients before it")
    return found


def _bound(func: FuncOp, limit: float) -> None:
    """Clip every element of every gradient."""
    if not (updates := _updates(func)):
        return
    block = func.body.block
    for gradient in _gradients(func, updates):
        limits = {"min": FloatAttr(-limit, 64), "max": FloatAttr(limit, 64)}
        clipped = _new(updates[0], "clamp", [gradient], gradient.type, f"{_hint(gradient)}.clipped", **limits)
        block.insert_op_before(clipped, updates[0])
        _replace(func, gradient, clipped.outs[0], updates)


def _scale(func: FuncOp, limit: float) -> None:
    """Scale all gradients so that their norm is no more than the limit."""
    if not (updates := _updates(func)):
        return
    gradients, ops = _gradients(func, updates), list[AtenOp]()

    def made(name: str, operands: Sequence[SSAValue], type: Attribute, hint: str, **given: Attribute) -> SSAValue:
        ops.append(_new(updates[0], name, operands, type, hint, **given))
        return ops[-1].outs[0]

    total: SSAValue | None = None
    for gradient in gradients:
        hint, narrow = _hint(gradient), dtype_of(gradient) in _NARROW
        scalar = TensorType(f32 if narrow else _element(gradient), [])
        square = made("mul.Tensor", [gradient, gradient], gradient.type, f"{hint}.squared")
        squares = made("sum", [square], scalar, f"{hint}.squares", **({"dtype": f32} if narrow else {}))
        total = squares if total is None else made("add.Tensor", [total, squares], squares.type, "grad_norm.squares")
    assert total is not None, "an update takes a gradient"
    norm = made("sqrt", [total], total.type, NORM)
    above = made("add.Scalar", [norm], norm.type, f"{NORM}.above", other=FloatAttr(_SMALL, 64))
    inverse = made("reciprocal", [above], norm.type, f"{NORM}.inverse")
    free = made("mul.Scalar", [inverse], norm.type, "grad_scale.free", other=FloatAttr(limit, 64))
    scale = made("clamp_max", [free], norm.type, "grad_scale", max=FloatAttr(1.0, 64))
    clipped = [made("mul.Tensor", [g, scale], g.type, f"{_hint(g)}.clipped") for g in gradients]
    func.body.block.insert_ops_before(ops, updates[0])
    for gradient, new in zip(gradients, clipped, strict=True):
        _replace(func, gradient, new, updates)
    _give(func, norm)


def _new(
    update: Operation, name: str, operands: Sequence[SSAValue], type: Attribute, hint: str, **given: Attribute
) -> AtenOp:
    """An aten op of the time between backward and the updates."""
    return like(update, name, operands, [type], hint, **given)


def _element(value: SSAValue) -> Attribute:
    return cast("TensorType[Attribute]", value.type).get_element_type()


def _hint(value: SSAValue) -> str:
    return value.name_hint or "grad"


def _replace(func: FuncOp, old: SSAValue, new: SSAValue, updates: Sequence[Operation]) -> None:
    """Let the updates, and who asked for the gradient, have the clipped one."""
    for update in updates:
        for at in train.gradients_of(update):
            if update.operands[at] is old:
                update.operands[at] = new
    end = func.body.block.last_op
    roles = func.res_attrs.data if func.res_attrs is not None else ()
    if isinstance(end, ReturnOp):
        for index, attributes in enumerate(roles):
            if train.GRAD in attributes.data and end.operands[index] is old:
                end.operands[index] = new


def _give(func: FuncOp, norm: SSAValue) -> None:
    """Return the norm as a metric."""
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    before = func.res_attrs.data if func.res_attrs is not None else (DictionaryAttr({}),) * len(end.operands)
    end.operands = [*end.operands, norm]
    func.res_attrs = ArrayAttr([*before, DictionaryAttr({train.METRIC: StringAttr(NORM)})])
    func.update_function_type()
