"""
Reading the sharding of a value, from the attributes of a function's argument or from its op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue

from ..ir.sharding import Sharding
from .sharding_attrs import ShardingAttr

SHARDING = "spmd.sharding"
"""
On an argument: its home, the sharding in which it is kept between steps. On a result: the sharding returned.
"""

AT = "spmd.at"
"""
On an op, once a temporal axis is unrolled: `{"micro" = 1}`, the part of each such axis that it runs for. Its results
are there for that part alone; types and shardings stay those of all parts together.
"""


class GivesShardings(ABC):
    """An op that gives its results shardings."""

    @abstractmethod
    def result_sharding(self, index: int) -> Sharding | None:
        """The sharding of the result `index`; None where nothing is decided, which means replicated."""


def argument_attribute(argument: BlockArgument, name: str) -> Attribute | None:
    """An attribute of a function's argument, or None."""
    func = argument.block.parent_op()
    if not isinstance(func, FuncOp) or func.arg_attrs is None or argument.index >= len(func.arg_attrs):
        return None
    return func.arg_attrs.data[argument.index].data.get(name)


def sharding_of(value: SSAValue) -> Sharding:
    """The sharding that a value has where it is defined; replicated where nothing says otherwise."""
    found = None
    if isinstance(value, BlockArgument):
        given = argument_attribute(value, SHARDING)
        found = given.sharding if isinstance(given, ShardingAttr) else None
    elif isinstance(value, OpResult) and isinstance(value.op, GivesShardings):
        found = value.op.result_sharding(value.index)
    return found if found is not None else Sharding.replicated(len(shape_of(value)))


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The global shape of a tensor value."""
    return tensor_type(value).get_shape()


def element_of(value: SSAValue) -> Attribute:
    """The type of a tensor's elements."""
    return tensor_type(value).element_type


def tensor_type(value: SSAValue) -> TensorType[Attribute]:
    """The type of a value that is a tensor."""
    return cast("TensorType[Attribute]", value.type)


def parts_of(op: Operation) -> dict[str, int]:
    """By unrolled temporal axis, the part that `op` runs for; nothing where it runs for all."""
    given = op.attributes.get(AT)
    entries = given.data.items() if isinstance(given, DictionaryAttr) else ()
    return {axis: part.value.data for axis, part in entries if isinstance(part, IntegerAttr)}
