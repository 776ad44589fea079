"""The purpose of a value's memory: parameters, optimizer states, gradients, activations, or temporary copies."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue

from ...dialects import train
from ...dialects.pipe import FragmentOp, TransferOp
from ...dialects.placed import argument_attribute
from ...dialects.spmd import AccumulateOp, ReshardingOp, WaitOp


class MemoryRole(StrEnum):
    """
    The purpose of memory.

    PARAMETERS   parameters and buffers of the model, at home
    STATES       states of the optimizer
    BATCH        this rank's part of the batch, and numbers such as the learning rate
    GRADIENTS    gradients of parameters, from the op that produces them to their update
    GATHERED     arguments in another form than at home: parameters of ZeRO while they are needed
    ACTIVATIONS  results of forward, many of them kept for backward, and the results of backward that are not gradients
    BUFFERS      memory of collectives besides operands and results
    """

    PARAMETERS = "parameters"
    STATES = "optimizer states"
    BATCH = "batch"
    GRADIENTS = "gradients"
    GATHERED = "gathered"
    ACTIVATIONS = "activations"
    BUFFERS = "buffers"


_OF_ARGUMENTS = {
    train.PARAM: MemoryRole.PARAMETERS,
    train.BUFFER: MemoryRole.PARAMETERS,
    train.STATE: MemoryRole.STATES,
}


class Roles:
    """The roles of the values of a function."""

    def __init__(self, func: FuncOp) -> None:
        self._arguments = [_argument_role(func, index) for index in range(len(func.body.block.args))]
        self._gradients = set(_gradients(func))

    def of(self, value: SSAValue[Attribute]) -> MemoryRole:
        """Return the purpose of a value's memory."""
        if isinstance(value, BlockArgument):
            return self._arguments[value.index]
        if value in self._gradients:
            return MemoryRole.GRADIENTS
        return MemoryRole.GATHERED if isinstance(_origin(value), BlockArgument) else MemoryRole.ACTIVATIONS


def _argument_role(func: FuncOp, index: int) -> MemoryRole:
    argument = func.body.block.args[index]
    named = (role for name, role in _OF_ARGUMENTS.items() if argument_attribute(argument, name) is not None)
    return next(named, MemoryRole.BATCH)


def _origin(value: SSAValue[Attribute]) -> SSAValue[Attribute]:
    """Return the value that a value is a resharded form of, or the value itself."""
    while isinstance(value, OpResult):
        op = value.op
        if isinstance(op, ReshardingOp):
            value = op.operand
        elif isinstance(op, WaitOp):
            value = op.start.args[value.index]
        else:
            return value
    return value


def _gradients(func: FuncOp) -> Iterable[SSAValue[Attribute]]:
    """Return the gradients that updates take or the function returns, and the values that they are forms or sums of."""
    pending: list[SSAValue[Attribute]] = []
    for op in func.walk():
        if train.is_update(op):
            pending += [op.operands[at] for at in train.gradients_of(op) if _is_gradient(op.operands[at])]
        elif isinstance(op, ReturnOp):
            listed = func.res_attrs.data if func.res_attrs is not None else ()
            pending += [v for v, role in zip(op.arguments, listed, strict=False) if train.GRAD in role.data]
    gradients = set[SSAValue[Attribute]]()
    while pending:
        value = pending.pop()
        if value not in gradients and isinstance(value, OpResult):
            gradients.add(value)
            pending += _sources(value)
    return gradients


def _is_gradient(value: SSAValue[Attribute]) -> bool:
    """Return whether a value that an update takes originates in an op that is not an update."""
    origin = _origin(value)
    return isinstance(origin, OpResult) and not train.is_update(origin.op)


def _sources(value: OpResult) -> Iterable[SSAValue[Attribute]]:
    match op := value.op:
        case ReshardingOp() | TransferOp():
            return (op.operand,)
        case WaitOp():
            return (op.start.args[value.index],)
        case AccumulateOp():
            return tuple(op.operands)
        case FragmentOp():
            return (op.terminator.args[value.index],)
        case _:
            return ()
