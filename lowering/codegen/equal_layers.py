"""
Find the equal layers of a step: ranges of equal ops that the program writes as one function.

Two ops are in one class if their texts differ only in names, layers and the streams of random numbers, which are
parameters of a function. Two ranges are equal if their ops are in the same classes and pass on values in the same
way, so that one function serves both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr, NameLoc
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.pipe import STAGE, FragmentOp, values_read
from ...dialects.placed import parts_of
from ...dialects.reuse import results_by_reused
from ...dialects.sharding_attrs import ShardingAttr
from ...dialects.spmd import AccumulateOp, AllReduceOp, CollectiveOp, FreeOp, StartOp, TokenType, WaitOp
from ...dialects.step import BACKWARD, sharding_of
from ...dialects.train import is_update
from .errors import phase_of
from .numbered_layers import numbered_layer
from .repeats import repeated_ranges
from .where import Where

STREAM = "stream"
"""The argument that differs between random ops."""

MOST_VALUES = 24
"""The most operands or results of an op in a layer; an op with more spans layers, such as a bucket or joined update."""


def _class_of(op: Operation, where: Where) -> Hashable | None:
    """
    Return the class of an op, or None if the op must stay outside the functions of layers.

    Args:
        where: the mesh and loop of the op. Stages with equal meshes have the same classes.
    """
    if max(len(op.operands), len(op.results)) > MOST_VALUES or (key := _text_key(op)) is None:
        return None
    return (where.mesh.axes, where.loop, *key)


def _text_key(op: Operation) -> tuple[object, ...] | None:
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


@dataclass(eq=False)
class LayerCall:
    """
    One of several equal ranges of ops.

    Args:
        uses: the function that the range is in.
        ops: ops of the range, including frees.
        kept: numbers of the groups of results that stay in one list until they are freed together.
    """

    uses: ValueUses
    ops: Sequence[Operation]
    kept: set[int] = field(default_factory=set[int])

    @cached_property
    def given(self) -> Sequence[SSAValue]:
        """The values from before the range that it reads, in order of first use."""
        own = {value for op in self.ops for value in op.results}
        needed = dict.fromkeys(value for op in self.ops for value in self.uses.needs(op))
        return [value for value in needed if value not in own]

    @cached_property
    def left(self) -> Sequence[SSAValue]:
        """The results that ops outside the range use, in order."""
        within = set(self.ops)
        values = (value for op in self.ops for value in op.results)
        return [value for value in values if not self.uses.users(value) <= within]

    @cached_property
    def freed(self) -> frozenset[SSAValue]:
        """The values and tokens that the range frees."""
        frees = (value for op in self.ops if isinstance(op, FreeOp) for value in op.args)
        return frozenset((*frees, *(op.token for op in self.ops if isinstance(op, WaitOp))))

    @property
    def streams(self) -> Sequence[ComputeOp]:
        """The ops of the range that draw random numbers."""
        return [op for op in self.ops if isinstance(op, ComputeOp) and STREAM in op.attributes]

    @cached_property
    def block(self) -> str:
        """The numbered layer of the model, such as `h.3`, that most ops of the range belong to."""
        return _most_frequent(numbered_layer(op) for op in self.ops)

    @cached_property
    def phase(self) -> str:
        """The phase of most ops of the range: forward, backward or update."""
        computed = [phase_of(op) for op in self.ops if isinstance(op, ComputeOp)]
        return _most_frequent(computed or map(phase_of, self.ops))


def _most_frequent(items: Iterable[str]) -> str:
    """Return the most frequent nonempty item, or an empty string."""
    counts = Counter(item for item in items if item)
    return counts.most_common(1)[0][0] if counts else ""


def find_calls(functions: Sequence[ValueUses]) -> list[list[LayerCall]]:
    """Return the groups of equal ranges of ops, each within one of `functions`, that are worth a function."""
    steps: list[tuple[ValueUses, list[Operation]]] = []
    ends: list[int] = []
    for uses in functions:
        # Ops without text belong to the op in front of them.
        own: list[list[Operation]] = []
        for op in uses.ops:
            if own and (isinstance(op, FreeOp) or uses.is_in_place_sum(op)):
                own[-1].append(op)
            else:
                own.append([op])
        ends += (len(steps) + end for end in _ends([_place(step[0]) for step in own]))
        steps += ((uses, step) for step in own)
    begins = [at == 0 or end != ends[at - 1] for at, end in enumerate(ends)]
    classes: dict[Hashable, int] = {}
    items: list[int | None] = []
    for uses, (op, *others) in steps:
        # Items are equal if their ops are in one class, and equally many values are freed after them.
        freed = sum(len(other.operands) for other in others)
        key = _class_of(op, uses.where)
        items.append(None if key is None else classes.setdefault((key, freed), len(classes)))

    def within(each: range) -> list[Operation]:
        return [op for _, step in steps[each.start : each.stop] for op in step]

    def alike(ranges: Sequence[range]) -> Sequence[range]:
        by_key: dict[Hashable, list[range]] = {}
        for each in ranges:
            by_key.setdefault(steps[each.start][0].key(within(each)), []).append(each)
        return max(by_key.values(), key=len)

    found = repeated_ranges(items, begins, ends, alike)
    return [[LayerCall(steps[each.start][0], within(each)) for each in ranges] for ranges in found]


def _place(op: Operation) -> tuple[str, str] | None:
    """Return the layer and phase of an op, or None for an op that may be in any range (a collective, for example)."""
    if not isinstance(op, ComputeOp) or not isinstance(op.location, NameLoc):
        return None
    return numbered_layer(op), phase_of(op)


def _ends(places: Sequence[tuple[str, str] | None]) -> list[int]:
    """Return, for each op, the latest end of a range that begins there: after the last op of its or the next layer."""
    ends: list[int] = []
    end, last = len(places), None
    for at in reversed(range(len(places))):
        place = places[at]
        if place is not None and place != last:
            end, last = at + 1, place
        ends.append(end)
    return ends[::-1]
