"""
Which ops of a function would be written alike, and which ranges of them, but for the names of values.

Two ops are of one class where their text differs in nothing but names, layers and the streams of random numbers, which
a function takes as arguments. Two ranges are equal where their ops are of the same classes and pass on their values in
the same way: in the function that is written for one of them, each value of the other has its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.pipe import FragmentOp
from ...dialects.placed import parts_of
from ...dialects.spmd import AccumulateOp, CollectiveOp, FreeOp, StartOp, TokenType, WaitOp
from ...dialects.step import BACKWARD, sharding_of
from ...dialects.train import is_update
from .overwritten import Overwritten

STREAM = "stream"
"""The argument that is different for each random op."""

MOST_VALUES = 24
"""Operands or results of an op of a layer; what has more is of several layers: buckets, joined updates."""


@dataclass(eq=False)
class Classes:
    """The classes of ops, as numbers in order of first use."""

    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    def of(self, op: Operation) -> int | None:
        """The class of an op; None of one that is in no function of a layer."""
        if max(len(op.operands), len(op.results)) > MOST_VALUES or (key := _class_of(op)) is None:
            return None
        return self._numbers.setdefault(key, len(self._numbers))


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
            return (op.name, *op.properties.items(), None, *op.attributes.items(), types, given, looped)
        case _:
            return None


@dataclass(frozen=True)
class ValueUses:
    """
    How the values of a function are passed on.

    Args:
        last_use: by value, the last op that reads it.
    """

    overwritten: Overwritten
    last_use: Mapping[SSAValue, Operation]

    def key(self, ops: Sequence[Operation]) -> tuple[object, ...]:
        """What equal ranges of ops have in common, given that their ops are of the same classes."""
        places: dict[SSAValue, int] = {}
        within = set(ops)
        found: list[object] = []
        for op in ops:
            found.append(tuple(places.setdefault(value, len(places)) for value in self.needs(op)))
            if isinstance(op, FreeOp):
                continue
            found.append(tuple(sorted(self.overwritten[op].items())))
            if isinstance(op, CollectiveOp):
                found.append(self.last_use[op.operand] is op)
            for value in op.results:
                users = {use.operation for use in value.uses}
                places[value] = len(places)
                found.append((all(isinstance(user, FreeOp) for user in users), users <= within))
        return tuple(found)

    def needs(self, op: Operation) -> Iterator[SSAValue]:
        """The values whose names the text of `op` may use; those that a wait gives back are its operands too."""
        yield from op.operands
        if isinstance(op, WaitOp):
            yield from (value for value in op.start.args if self.last_use[value] is op)

    def given(self, ops: Sequence[Operation]) -> list[SSAValue]:
        """The values that a range takes from before it, in order of first use."""
        made = {value for op in ops for value in op.results}
        needed = dict.fromkeys(value for op in ops for value in self.needs(op))
        return [value for value in needed if value not in made]

    @staticmethod
    def left(ops: Sequence[Operation]) -> list[SSAValue]:
        """The values that a range makes and that others use, in order."""
        within = set(ops)
        values = (value for op in ops for value in op.results)
        return [value for value in values if any(use.operation not in within for use in value.uses)]
