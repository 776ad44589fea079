"""Read the sharding of a value, from the attributes of a function's argument or from the op that defines it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue

from ..ir.sharding import Sharding
from .sharding_attrs import ShardingAttr

SHARDING = "spmd.sharding"
"""On an argument: its home, which is its sharding between steps. On a result: the sharding that is returned."""

AT = "spmd.at"
"""
On an op, once a temporal axis is unrolled: `{"micro" = 1}`, the part of each such axis that the op runs for. Its
results exist for that part alone; types and shardings still describe all parts together.
"""


class GivesShardings(ABC):
    """An op that defines the shardings of its results."""

    @abstractmethod
    def result_sharding(self, index: int) -> Sharding | None:
        """Return the sharding of result `index`, or None before it is decided, which means replicated."""


def argument_attribute(argument: BlockArgument, name: str) -> Attribute | None:
    """Return an attribute of a function's argument, or None if it is absent."""
    func = argument.block.parent_op()
    if not isinstance(func, FuncOp) or func.arg_attrs is None or argument.index >= len(func.arg_attrs):
        return None
    return func.arg_attrs.data[argument.index].data.get(name)


def sharding_of(value: SSAValue) -> Sharding:
    """Return the sharding that a value has where it is defined; replicated where none is decided."""
    sharding = None
    if isinstance(value, BlockArgument):
        attribute = argument_attribute(value, SHARDING)
        sharding = attribute.sharding if isinstance(attribute, ShardingAttr) else None
    elif isinstance(value, OpResult) and isinstance(value.op, GivesShardings):
        sharding = value.op.result_sharding(value.index)
    return sharding if sharding is not None else Sharding.replicated(len(shape_of(value)))


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """Return the global shape of a tensor value."""
    return tensor_type(value).get_shape()


def element_of(value: SSAValue) -> Attribute:
    """Return the element type of a tensor value."""
    return tensor_type(value).element_type


def tensor_type(value: SSAValue) -> TensorType[Attribute]:
    """Return the type of a tensor value."""
    return cast("TensorType[Attribute]", value.type)


def parts_of(op: Operation) -> dict[str, int]:
    """Map each unrolled temporal axis to the part that `op` runs for; empty if it runs for all parts."""
    attribute = op.attributes.get(AT)
    entries = attribute.data.items() if isinstance(attribute, DictionaryAttr) else ()
    return {axis: part.value.data for axis, part in entries if isinstance(part, IntegerAttr)}
