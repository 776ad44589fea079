"""The purpose of a value's memory: parameters, optimizer states, gradients, activations, or copies on the way."""

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
    What memory is for.

    PARAMETERS   parameters and buffers of the model, at home
    STATES       of the optimizer
    BATCH        this rank's part of the batch, and numbers such as the learning rate
    GRADIENTS    of parameters, from the op that makes them to their update
    GATHERED     arguments in another form than at home: parameters of ZeRO while they are needed
    ACTIVATIONS  what forward makes, much of it kept for backward, and what backward makes of it
    BUFFERS      what collectives need beside operands and results
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
        """What the memory of a value is for."""
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
    """What a value is another form of, through changes of sharding."""
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
    """What updates take as gradients or the function returns as such, with what it is a form or a sum of."""
    pending: list[SSAValue[Attribute]] = []
    for op in func.walk():
        if train.is_update(op):
            pending += [op.operands[at] for at in train.gradients_of(op) if _is_gradient(op.operands[at])]
        elif isinstance(op, ReturnOp):
            listed = func.res_attrs.data if func.res_attrs is not None else ()
            pending += [v for v, role in zip(op.arguments, listed, strict=False) if train.GRAD in role.data]
    found = set[SSAValue[Attribute]]()
    while pending:
        value = pending.pop()
        if value not in found and isinstance(value, OpResult):
            found.add(value)
            pending += _sources(value)
    return found


def _is_gradient(value: SSAValue[Attribute]) -> bool:
    """Whether what an update takes from outside is no argument in another form, nor of an update."""
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
