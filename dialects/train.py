"""
The `train` dialect: the optimizer's updates, and the roles of a step function's arguments and results.

The update of a parameter is one fused op (`train.sgd`, `train.adam`, `train.adamw`), or ordinary ops that carry `train.update`, the
last of which write the new parameter and states over the old ones (`train.assign`).

A step is `(parameters, optimizer states, buffers, batch, learning rate, seed) -> (loss, updated values, ...)`.
Arguments carry one of the role attributes below; a result that is the new value of an argument carries
`train.updates`, that argument's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, BlockArgument, Dialect, Operation, SSAValue
from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from ..ir.ops.spec import OpInstance
from ..ir.ops.table import update_rule
from ..ir.rules import Rule
from .compute import ComputeOp, shape_of
from .placed import argument_attribute

PARAM, STATE, BUFFER, CONSTANT, BATCH = (
    "train.param",
    "train.state",
    "train.buffer",
    "train.constant",
    "train.batch",
)
LEARNING_RATE, STEP_COUNT, SEED = "train.learning_rate", "train.step_count", "train.seed"
ROLES = (PARAM, STATE, BUFFER, CONSTANT, BATCH, LEARNING_RATE, STEP_COUNT, SEED)
"""
Role attributes of arguments. PARAM, BUFFER, CONSTANT and BATCH hold a name, STATE holds `[parameter, state]`,
LEARNING_RATE the number of a group of parameters where there are several; the others hold nothing. SEED is that of the
random numbers of this step, another one for each step.
"""

UPDATES, LOSS, GRAD, METRIC, OUTPUT = "train.updates", "train.loss", "train.grad", "train.metric", "train.output"
"""
Role attributes of results: the index of the argument that it replaces, nothing, a parameter's name, a name, and which
of the tensors that the model returns.
"""


FORWARD = "train.forward"
"""On a function: it is the forward pass of a model alone, in eval mode."""


UPDATE = "train.update"
"""
On an op that is not fused: it belongs to the optimizer's update, of the parameter of this name, or of several of them.
"""

INITIAL = "train.initial"
"""On an argument that is a state: what its elements are before the first step; zero where it is not there."""


class TrainOp(ComputeOp):
    """The base of the updates: every tensor is spread like the first result, scalars are replicated."""

    OPERANDS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    """Those that only some settings have; calls name them."""

    def __init__(self, operands: Sequence[SSAValue], results: Sequence[Attribute], attributes: dict[str, Attribute]):
        super().__init__(operands=[operands], result_types=[results], attributes=attributes)

    @property
    def overload(self) -> str:
        """The op's own name."""
        return self.name

    def operand_names(self) -> tuple[str, ...]:
        """The operands' names, less those that are absent."""
        return tuple(name for name in self.OPERANDS if name not in self.absent())

    def rule(self) -> Rule:
        """Element by element in the parameter."""
        return _rule(tuple(map(shape_of, self.args)), tuple(map(shape_of, self.outs)))

    def verify_(self) -> None:
        names = self.operand_names()
        if len(names) != len(self.args):
            raise VerifyException(f"'{self.name}' has {len(self.args)} operands, expected ({', '.join(names)})")
        super().verify_()


@lru_cache(maxsize=4096)
def _rule(operands: tuple[tuple[int, ...], ...], results: tuple[tuple[int, ...], ...]) -> Rule:
    rule = update_rule(OpInstance("update", operands, results))
    if (problem := rule.misfit(operands, results)) is not None:
        raise ValueError(problem)
    return rule


@irdl_op_definition
class SgdOp(TrainOp):
    """SGD of one parameter: `(param, grad, momentum_buffer?, step, lr) -> (param', momentum_buffer'?)`."""

    name = "train.sgd"
    OPERANDS: ClassVar[tuple[str, ...]] = ("param", "grad", "momentum_buffer", "step", "lr")


class AdamBaseOp(TrainOp):
    """
    What Adam and AdamW have in common.

    `(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq?, step, lr) -> (param', exp_avg', exp_avg_sq', max_exp_avg_sq'?)`;
    the fifth is there where `amsgrad` is.
    """

    OPERANDS: ClassVar[tuple[str, ...]] = ("param", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step", "lr")
    OPTIONAL: ClassVar[tuple[str, ...]] = ("max_exp_avg_sq",)

    def operand_names(self) -> tuple[str, ...]:
        """The operands' names, less the maximum where none is kept."""
        absent = () if self.arguments().get("amsgrad") else self.OPTIONAL
        return tuple(name for name in self.OPERANDS if name not in absent)


@irdl_op_definition
class AdamOp(AdamBaseOp):
    """Adam of one parameter, whose weight decay is added to the gradient."""

    name = "train.adam"


@irdl_op_definition
class AdamWOp(AdamBaseOp):
    """AdamW of one parameter, whose weight decay scales the parameter."""

    name = "train.adamw"


@irdl_op_definition
class IncrementOp(TrainOp):
    """The count of this step, from that of the last: shared by all updates."""

    name = "train.increment"
    OPERANDS: ClassVar[tuple[str, ...]] = ("step",)


@irdl_op_definition
class AssignOp(TrainOp):
    """The new value of a parameter or state, written over the old one: `(old, new) -> old'`."""

    name = "train.assign"
    OPERANDS: ClassVar[tuple[str, ...]] = ("old", "new")


FusedOp: TypeAlias = SgdOp | AdamOp | AdamWOp
"""The update of a parameter as one op."""

FUSED: dict[str, type[FusedOp]] = {"sgd": SgdOp, "adam": AdamOp, "adamw": AdamWOp}
"""By the kind of an optimizer."""

TRAIN = Dialect("train", [*FUSED.values(), IncrementOp, AssignOp])


def is_update(op: Operation) -> bool:
    """Whether an op is one of the optimizer's: fused, or a part of an update."""
    return isinstance(op, TrainOp) or UPDATE in op.attributes


def updated_parameter(op: Operation) -> str | None:
    """The name of the parameter whose update an op that is not fused belongs to."""
    name = op.attributes.get(UPDATE)
    return name.data if isinstance(name, StringAttr) else None


def gradients_of(op: Operation) -> list[int]:
    """
    The operands of an update by which it takes gradients.

    Of ops that together are an update these are what is made outside of it, and no parameter, state, rate or count.
    """
    if isinstance(op, FusedOp):
        return [1]
    if not is_update(op):
        return []
    return [index for index, value in enumerate(op.operands) if _comes_from_outside(value)]


def _comes_from_outside(value: SSAValue) -> bool:
    if not isinstance(value, BlockArgument):
        return isinstance(value.owner, Operation) and not is_update(value.owner)
    return all(argument_attribute(value, role) is None for role in (PARAM, STATE, LEARNING_RATE, STEP_COUNT))


def overwritten_by_update(op: Operation) -> tuple[tuple[int, int], ...]:
    """
    The (operand, result) positions of what an update writes in place; none for an op of another kind.

    `(param, grad, *states, step, lr) -> (param, *states)`, `(old, new) -> old`.
    """
    if isinstance(op, AssignOp):
        return ((0, 0),)
    if isinstance(op, FusedOp):
        return tuple((position + bool(position), position) for position in range(len(op.results)))
    return ()
