"""
Values of a step that are compared with what is computed from them, as in the gradient of `amax`: `h ==
expand(amax(h))`.

On one device both sides of such a comparison come from the same number, so that it finds what it looks for. Where the
number is a sum over devices, both have to come from one sum: two that are made in other ways, as a reduce-scatter and
an all-reduce, or before and after a linear op, differ by rounding. Then no element equals the largest, say, and a
gradient that is divided by how many do is NaN.
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
"""How the names of dtypes begin whose sums depend on their order."""


@dataclass(frozen=True)
class Comparisons:
    """
    Args:
        values: those of which a comparison takes two things that are made of them, and what lies between: each is
            reduced once, and all of its users see that.
        ops: those that lie between, and the comparisons: none takes or gives a partial sum.
    """

    values: frozenset[SSAValue]
    ops: frozenset[ComputeOp]

    def rule(self, op: ComputeOp) -> Rule:
        """The sharding rule of an op, without what a comparison does not allow."""
        rule = op.rule()
        if op not in self.ops or not rule.linear:
            return rule
        if id(rule) not in _WHOLE_SUMS:
            _WHOLE_SUMS[id(rule)] = (rule, replace(rule, linear=()))
        return _WHOLE_SUMS[id(rule)][1]


_WHOLE_SUMS: dict[int, tuple[Rule, Rule]] = {}
"""Rules without their linear operands, by the identity of the rule, which is kept."""


def find_comparisons(view: StepView) -> Comparisons:
    """The comparisons of a step whose two sides come from one value."""
    order = {op: number for number, op in enumerate(view.ops)}
    values: set[SSAValue] = set()
    ops: set[ComputeOp] = set()
    for op in view.ops:
        if spec_of(op).decides and len(op.args) > 1:
            found = _between(op, order)
            values |= found.values
            ops |= found.ops
    return Comparisons(frozenset(values), frozenset(ops))


def _between(comparison: ComputeOp, order: Mapping[ComputeOp, int]) -> Comparisons:
    """What both sides of a comparison come from, and what lies between."""
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
            # Beyond a sum both sides are rounded apart on one device, too.
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
    """The ops that make an op's operands which are rounded, with the numbers of these."""
    for index, value in enumerate(op.args):
        maker = value.owner
        if isinstance(maker, ComputeOp) and maker in order and dtype_of(value).startswith(_ROUNDED):
            yield index, maker
