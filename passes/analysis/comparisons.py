"""
Find values that a step compares with results computed from them, as in the gradient of `amax`: `h ==
expand(amax(h))`.

On one device both sides of the comparison come from the same number, so some element equals the maximum. If this number
is a sum over devices, both sides must come from one reduction: two different reductions, such as a reduce-scatter and
an all-reduce, or one before and one after a linear op, differ by rounding. Then no element may equal the maximum, and a
gradient that is divided by the number of maxima is NaN.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from ...dialects.compute import ComputeOp, dtype_of
from ...ir.rules import Rule
from ...ir.sharding import Reduction
from ..step.step_view import StepView
from .compute import spec_of

_ROUNDED = ("float", "bfloat", "complex")
"""Prefixes of the dtypes whose sums depend on the order of the terms."""


@dataclass(frozen=True)
class Comparisons:
    """
    The values and ops between comparisons and a value that both of their sides come from.

    Args:
        values: the common values, and all values in between; each is reduced once, for all of its users.
        ops: the comparisons and the ops in between, whose operands and results must be complete sums.
    """

    values: frozenset[SSAValue]
    ops: frozenset[ComputeOp]

    def rule(self, op: ComputeOp) -> Rule:
        """Return the sharding rule of an op, without linear operands if a comparison forbids partial sums."""
        rule = op.rule()
        if op not in self.ops or not rule.linear:
            return rule
        if id(rule) not in _WHOLE_SUMS:
            _WHOLE_SUMS[id(rule)] = (rule, replace(rule, linear=()))
        return _WHOLE_SUMS[id(rule)][1]


_WHOLE_SUMS: dict[int, tuple[Rule, Rule]] = {}
"""Rules without their linear operands, by the id of the original rule, which is kept alive here."""


def find_comparisons(view: StepView) -> Comparisons:
    """Return the comparisons of a step whose two sides come from one value."""
    order = {op: number for number, op in enumerate(view.ops)}
    values: set[SSAValue] = set()
    ops: set[ComputeOp] = set()
    for op in view.ops:
        if spec_of(op).decides and len(op.args) > 1:
            between = _between(op, order)
            values |= between.values
            ops |= between.ops
    return Comparisons(frozenset(values), frozenset(ops))


def _between(comparison: ComputeOp, order: Mapping[ComputeOp, int]) -> Comparisons:
    """Return the values that both sides of a comparison come from, and the values and ops in between."""
    sides: dict[ComputeOp, set[int]] = {}
    waiting: list[tuple[int, ComputeOp]] = []

    def reach(maker: ComputeOp, reached: Iterable[int]) -> None:
        if maker not in sides:
            sides[maker] = set()
            heapq.heappush(waiting, (-order[maker], maker))
        sides[maker].update(reached)

    for side, maker in _makers(comparison, order):
        reach(maker, (side,))
    common: set[ComputeOp] = set()
    while waiting:
        _, op = heapq.heappop(waiting)
        if len(sides[op]) > 1:
            common.add(op)
        elif Reduction.SUM not in op.rule().reductions.values():
            # Do not go beyond a sum: there both sides are rounded separately on one device, too.
            for _, maker in _makers(op, order):
                reach(maker, sides[op])
    values = {result for op in common for result in op.outs}
    ops: set[ComputeOp] = set()
    for op in sorted((*sides, comparison), key=order.__getitem__):
        if op not in common and not values.isdisjoint(op.args):
            ops.add(op)
            values.update(op.outs)
    return Comparisons(frozenset(values), frozenset(ops))


def _makers(op: ComputeOp, order: Mapping[ComputeOp, int]) -> Iterator[tuple[int, ComputeOp]]:
    """Yield the producers of an op's floating-point operands, each with the index of its operand."""
    for index, value in enumerate(op.args):
        maker = value.owner
        if isinstance(maker, ComputeOp) and maker in order and dtype_of(value).startswith(_ROUNDED):
            yield index, maker
