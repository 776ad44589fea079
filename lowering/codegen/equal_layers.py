"""Find the equal layers of a step: ranges of equal ops that the program writes as one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation, SSAValue

from ...dialects.compute import ComputeOp
from ...dialects.spmd import FreeOp, WaitOp
from .equal_ops import STREAM, ValueUses, class_of
from .errors import phase_of
from .numbered_layers import numbered_layer
from .repeats import repeated_ranges


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
        own = _steps(uses)
        ends += (len(steps) + end for end in _ends([_place(step[0]) for step in own]))
        steps += ((uses, step) for step in own)
    begins = [at == 0 or end != ends[at - 1] for at, end in enumerate(ends)]
    classes: dict[Hashable, int] = {}
    items: list[int | None] = []
    for uses, (op, *others) in steps:
        # Items are equal if their ops are in one class, and equally many values are freed after them.
        freed = sum(len(other.operands) for other in others)
        key = class_of(op, uses.where)
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


def _steps(uses: ValueUses) -> list[list[Operation]]:
    """Group each op with the ops without text that follow it."""
    steps: list[list[Operation]] = []
    for op in uses.ops:
        if steps and (isinstance(op, FreeOp) or uses.is_in_place_sum(op)):
            steps[-1].append(op)
        else:
            steps.append([op])
    return steps
