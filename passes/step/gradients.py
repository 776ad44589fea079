"""The gradients of a step between backward and the updates: what `clip-gradients` and others put ops around."""

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
    """The updates that take gradients, in order."""
    return [op for op in func.body.block.ops if train.gradients_of(op)]


def gradients(func: FuncOp, updates: Sequence[Operation], wanted_by: str) -> list[SSAValue]:
    """
    What the updates take, once each; all of it must be there before the first update.

    Args:
        wanted_by: the pass, for the error.
    """
    places = {op: place for place, op in enumerate(func.body.block.ops)}
    found = list(dict.fromkeys(update.operands[at] for update in updates for at in train.gradients_of(update)))
    for gradient in found:
        if isinstance(gradient, OpResult) and places[gradient.op] > places[updates[0]]:
            fail(gradient.op, f"comes after the first update; {wanted_by} needs all gradients before it")
    return found


class Insertion:
    """
    Ops to be inserted before the first update; one use.

    Args:
        update: gives them their location.
    """

    def __init__(self, update: Operation) -> None:
        self._update = update
        self._ops: list[AtenOp] = []

    def add(
        self, name: str, operands: Sequence[SSAValue], shape: Sequence[int], hint: str, **given: Attribute
    ) -> SSAValue:
        """The result of an aten op, of this shape."""
        self._ops.append(like(self._update, name, operands, [shape], hint, **given))
        return self._ops[-1].outs[0]

    def scaled(self, gradient: SSAValue, scale: SSAValue, hint: str, **given: Attribute) -> SSAValue:
        """A multiple of a gradient, in the gradient's own dtype, as torch multiplies in place."""
        result = self.add("mul.Tensor", [gradient, scale], shape_of(gradient), hint, **given)
        self._ops += cast(self._update, result, element_of(gradient), hint, **given)
        return self._ops[-1].outs[0]

    def insert(self, func: FuncOp, before: Operation) -> None:
        """Put them there, in the order in which they were added."""
        func.body.block.insert_ops_before(self._ops, before)

    def insert_before_updates(self, func: FuncOp) -> None:
        """Put them in front of all updates; of those, some stand before the last gradients, and are moved."""
        block, place = func.body.block, self._update
        before = list(takewhile(lambda op: op is not place, block.ops))
        early = [op for op in before if train.is_update(op)]
        made = {value for op in early for value in op.results}
        if reader := next((op for op in before if op not in early and not made.isdisjoint(op.operands)), None):
            fail(reader, "reads a result of an update before all gradients are there; move it behind the updates")
        self.insert(func, place)
        for op in early:
            op.detach()
            block.insert_op_before(op, place)


def clip_of(gradient: SSAValue) -> AtenOp | None:
    """The op of `clip-gradients` that made a gradient, if it did."""
    op = gradient.owner
    if not isinstance(op, AtenOp) or BACKWARD in op.attributes:
        return None
    return op if op.overload == "clamp" or train.EACH_GRADIENT in op.attributes else None


def any_not_finite(made: Insertion, given: Sequence[SSAValue]) -> SSAValue:
    """Whether not all elements of all values are finite."""
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
    """Let the updates, and who asked for the gradient, have the new one."""
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
    """Return one more value, with its role."""
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    before = func.res_attrs.data if func.res_attrs is not None else (DictionaryAttr({}),) * len(end.operands)
    end.operands = [*end.operands, value]
    func.res_attrs = ArrayAttr([*before, DictionaryAttr({role: what})])
    func.update_function_type()


def add_metric(func: FuncOp, value: SSAValue, name: str) -> None:
    """Return one more value, as a metric."""
    add_result(func, value, train.METRIC, StringAttr(name))


def hint_of(value: SSAValue) -> str:
    """What to call a gradient."""
    return value.name_hint or "grad"
