"""The gradients of a step between backward and the updates, where `clip-gradients` and other passes insert ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.aten import AtenOp
from ...dialects.placed import element_of, shape_of
from ...dialects.step import BACKWARD
from ..errors import fail
from .new_ops import cast, like


def gradient_users(func: FuncOp) -> list[Operation]:
    """Return the updates that take gradients, in program order."""
    return [op for op in func.body.block.ops if train.gradients_of(op)]


def gradients(func: FuncOp, updates: Sequence[Operation], wanted_by: str) -> list[SSAValue]:
    """
    Return the gradients that the updates take, without duplicates; OpFailure if one is computed after the first update.

    Args:
        wanted_by: name of the pass, for the error message.
    """
    places = {op: place for place, op in enumerate(func.body.block.ops)}
    taken = list(dict.fromkeys(update.operands[at] for update in updates for at in train.gradients_of(update)))
    for gradient in taken:
        if isinstance(gradient, OpResult) and places[gradient.op] > places[updates[0]]:
            fail(gradient.op, f"comes after the first update; {wanted_by} needs all gradients before it")
    return taken


class Insertion:
    """
    Ops to be inserted before updates; used once.

    Args:
        update: the update that `insert_before_updates` inserts in front of; the ops take its location and phase.
    """

    def __init__(self, update: Operation) -> None:
        self._update = update
        self._ops: list[AtenOp] = []

    def add(
        self, name: str, operands: Sequence[SSAValue], shape: Sequence[int], hint: str, **given: Attribute
    ) -> SSAValue:
        """Add an aten op with a result of this shape, and return the result."""
        self._ops.append(like(self._update, name, operands, [shape], hint, **given))
        return self._ops[-1].outs[0]

    def scaled(self, gradient: SSAValue, scale: SSAValue, hint: str, **given: Attribute) -> SSAValue:
        """Add the product of a gradient and a scale in the gradient's dtype, as torch multiplies in place."""
        result = self.add("mul.Tensor", [gradient, scale], shape_of(gradient), hint, **given)
        self._ops += cast(self._update, result, element_of(gradient), hint, **given)
        return self._ops[-1].outs[0]

    def insert(self, func: FuncOp, before: Operation) -> None:
        """Insert the ops before an op, in the order of their addition."""
        func.body.block.insert_ops_before(self._ops, before)

    def insert_before_updates(self, func: FuncOp) -> None:
        """Insert the ops before the update, and move earlier updates behind them."""
        block, place = func.body.block, self._update
        before = list(takewhile(lambda op: op is not place, block.ops))
        early = [op for op in before if train.is_update(op)]
        results = {value for op in early for value in op.results}
        if reader := next((op for op in before if op not in early and not results.isdisjoint(op.operands)), None):
            fail(reader, "reads a result of an update before all gradients are computed; move it behind the updates")
        self.insert(func, place)
        for op in early:
            op.detach()
            block.insert_op_before(op, place)


def clip_of(gradient: SSAValue) -> AtenOp | None:
    """Return the op of `clip-gradients` that produced a gradient, or None."""
    op = gradient.owner
    if not isinstance(op, AtenOp) or BACKWARD in op.attributes:
        return None
    return op if op.overload == "clamp" or train.EACH_GRADIENT in op.attributes else None


def any_not_finite(made: Insertion, given: Sequence[SSAValue]) -> SSAValue:
    """Add ops that compute whether any element of any of the values is not finite."""
    count, total = 0, None
    for value in given:
        hint = hint_of(value)
        finite = made.add("isfinite", [value], shape_of(value), f"{hint}.finite")
        number = made.add("sum", [finite], (), f"{hint}.finite.count")
        total = number if total is None else made.add("add.Tensor", [total, number], (), "finite.count")
        count += math.prod(shape_of(value))
    assert total is not None, "an update takes a gradient"
    return made.add("ne.Scalar", [total], (), "skips", other=IntegerAttr(count, i64))


def replace_gradient(func: FuncOp, old: SSAValue, new: SSAValue, updates: Sequence[Operation]) -> None:
    """Replace a gradient in the updates, and in the results that return it."""
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


def add_result(func: FuncOp, value: SSAValue, role: str, what: Attribute) -> None:
    """Add a value with its role to the results of the step."""
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    before = func.res_attrs.data if func.res_attrs is not None else (DictionaryAttr({}),) * len(end.operands)
    end.operands = [*end.operands, value]
    func.res_attrs = ArrayAttr([*before, DictionaryAttr({role: what})])
    func.update_function_type()


def add_metric(func: FuncOp, value: SSAValue, name: str) -> None:
    """Add a value to the results of the step, as a metric."""
    add_result(func, value, train.METRIC, StringAttr(name))


def hint_of(value: SSAValue) -> str:
    """Return the name of a gradient, or `grad` if it has none."""
    return value.name_hint or "grad"
