"""
Find ops, and ranges of ops, whose program text is equal except for the names of values.

Two ops are in one class if their texts differ only in names, layers and the streams of random numbers, which are
parameters of a function. Two ranges are equal if their ops are in the same classes and pass on values in the same
way, so that one function serves both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.pipe import STAGE, FragmentOp, values_read
from ...dialects.placed import parts_of
from ...dialects.reuse import results_by_reused
from ...dialects.sharding_attrs import ShardingAttr
from ...dialects.spmd import AccumulateOp, AllReduceOp, CollectiveOp, FreeOp, StartOp, TokenType, WaitOp
from ...dialects.step import BACKWARD, sharding_of
from ...dialects.train import is_update
from .where import Where

STREAM = "stream"
"""The argument that differs between random ops."""

MOST_VALUES = 24
"""The most operands or results of an op in a layer; an op with more spans layers, such as a bucket or joined update."""


def class_of(op: Operation, where: Where) -> Hashable | None:
    """
    Return the class of an op, or None if the op must stay outside the functions of layers.

    Args:
        where: the mesh and loop of the op. Stages with equal meshes have the same classes.
    """
    if max(len(op.operands), len(op.results)) > MOST_VALUES or (key := _class_of(op)) is None:
        return None
    return (where.mesh.axes, where.loop, *key)


def _class_of(op: Operation) -> tuple[object, ...] | None:
    match op:
        case ComputeOp():
            use = op.use_key()
            if STREAM in op.attributes:
                arguments = ((name, each) for name, each in op.attributes.items() if "." not in name)
                use = (use[0], tuple(each for each in arguments if each[0] != STREAM), *use[2:])
            return (type(op), *use, op.signature, BACKWARD in op.attributes, is_update(op), *parts_of(op).items())
        case CollectiveOp() | StartOp() | WaitOp() | AccumulateOp():
            types = tuple(value.type for value in (*op.operands, *op.results))
            given = tuple(sharding_of(value) for value in op.operands if not isinstance(value.type, TokenType))
            looped = tuple(isinstance(value.owner, FragmentOp) for value in op.operands)
            properties = ((name, _without_mesh(each)) for name, each in op.properties.items())
            attributes = (each for each in op.attributes.items() if each[0] != STAGE)
            return (op.name, *properties, None, *attributes, types, given, looped)
        case _:
            return None


def _without_mesh(attribute: Attribute) -> object:
    """Return an attribute as a key that does not depend on the names of meshes, which differ between stages."""
    match attribute:
        case ShardingAttr():
            return attribute.sharding
        case ArrayAttr():
            return tuple(map(_without_mesh, attribute))
        case _:
            return attribute


def read_by(op: Operation) -> Iterable[SSAValue]:
    """Return the values whose memory `op` reads; a wait reads the operands of its start."""
    return (op.token, *op.start.args) if isinstance(op, WaitOp) else values_read(op)


@dataclass(frozen=True, eq=False)
class ValueUses:
    """
    The ops of a function, and the uses of its values.

    Args:
        ops: ops in order, including frees.
        overwritten: op -> operand that it overwrites -> result in the memory of this operand.
        last_use: value -> last op that reads it.
        frees: whether the function deletes values that are no longer needed.
    """

    ops: Sequence[Operation]
    where: Where
    overwritten: Mapping[Operation, Mapping[int, int]]
    last_use: Mapping[SSAValue, Operation]
    frees: bool

    @staticmethod
    def of(ops: Sequence[Operation], where: Where) -> ValueUses:
        """Return the uses of the values of `ops`."""
        last_use = {value: op for op in ops if not isinstance(op, FreeOp) for value in read_by(op)}
        frees = any(isinstance(op, FreeOp) for op in ops)
        overwritten = {op: {} if isinstance(op, FragmentOp) else results_by_reused(op) for op in ops}
        return ValueUses(ops, where, overwritten, last_use, frees)

    @cached_property
    def _frees(self) -> frozenset[Operation]:
        return frozenset(op for op in self.ops if isinstance(op, FreeOp))

    def is_over_loop(self, op: CollectiveOp) -> bool:
        """Return whether a collective over temporal axes reads the result of a loop."""
        axes = (axis for axes in op.axes.data for axis in axes)
        return isinstance(op.operand.owner, FragmentOp) and self.where.temporal.issuperset(axes)

    def is_in_place_sum(self, op: Operation) -> bool:
        """Return whether an op is the sum over a loop, which the loop has computed in place."""
        return isinstance(op, AllReduceOp) and self.is_over_loop(op) and bool(self.overwritten[op])

    def users(self, value: SSAValue) -> set[Operation]:
        """Return the ops that use a value; a free that is not of this function is none of them."""
        users = (use.operation for use in value.uses)
        return {user for user in users if not isinstance(user, FreeOp) or user in self._frees}

    def key(self, ops: Sequence[Operation]) -> tuple[object, ...]:
        """Return a key that is equal for equal ranges, if their ops are in the same classes."""
        places: dict[SSAValue, int] = {}
        within = set(ops)
        parts: list[object] = []
        for op in ops:
            parts.append(tuple(places.setdefault(value, len(places)) for value in self.needs(op)))
            if isinstance(op, FreeOp):
                continue
            parts.append(tuple(sorted(self.overwritten[op].items())))
            if isinstance(op, CollectiveOp):
                parts.append(self.last_use[op.operand] is op)
            for value in op.results:
                users = self.users(value)
                places[value] = len(places)
                parts.append((all(isinstance(user, FreeOp) for user in users), users <= within))
        return tuple(parts)

    def needs(self, op: Operation) -> Iterator[SSAValue]:
        """Yield the values whose names the text of `op` may use, including operands that a wait gives back."""
        yield from op.operands
        if isinstance(op, WaitOp):
            yield from (value for value in op.start.args if self.last_use[value] is op)
