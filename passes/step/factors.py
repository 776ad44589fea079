"""
Which dims of a step are split together, and into how many pieces that must stay whole.

Offsets belong to factors. An op that splits a factor splits every dim that the factor leads, so these dims share their
boundaries; so do the dims of one value in all its uses. A dim that is a product, such as 42 = 6x7, can then be split
only where its leading factor is split. The dims that are tied in this way form a set; its number of pieces is the
greatest common divisor of the sizes of the leading factors. Then, in every dim of the set, a whole number of pieces is
a whole number of elements of every factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.ir import BlockArgument, OpResult, SSAValue

from ...dialects.compute import ComputeOp, python_value, shape_of
from ...dialects.placed import argument_attribute
from ...dialects.ratios import PIECES, segment_of
from ...ir.ratios import Ratios, Splits
from ...ir.rules import Rule
from ...ir.signatures import factor_splits
from .step_view import StepView

Place = tuple[SSAValue, int]
"""A dim of a value."""

Slots = tuple[tuple[int, int], ...]
"""Dims of an op's operands and results: the position among both, and the dim."""


@dataclass(frozen=True)
class Factors:
    """How the values and ops of one step are divided, given the ratios of the segments."""

    view: StepView
    ratios: Mapping[int, Ratios]
    _known: dict[SSAValue, Splits] = field(default_factory=dict[SSAValue, Splits], init=False, repr=False)

    def of_op(self, op: ComputeOp) -> Splits:
        """Return how the factors of an op's rule are divided."""
        values, counts, rule = (*op.operands, *op.results), dict[str, int](), op.rule()
        for factor, slots in _led(rule).items():
            position, dim = slots[0]
            counts[factor] = self._counts[self._find((values[position], dim))]
        return factor_splits(rule, counts, self.ratios_of(segment_of(op)))

    def of_value(self, value: SSAValue) -> Splits:
        """Return how the dims of a value are divided by its producer; an argument uses the ratios of its first user."""
        if (splits := self._known.get(value)) is None:
            shape = shape_of(value)
            counts = (self._counts.get(self._find((value, dim)), size) for dim, size in enumerate(shape))
            splits = self._known[value] = Splits(shape, tuple(counts), self.ratios_of(self._segment(value)))
        return splits

    def ratios_of(self, segment: int) -> Ratios:
        """Return the ratios of a segment; a segment without ratios has the ratios of segment 0."""
        return self.ratios.get(segment, self.ratios[0])

    def _segment(self, value: SSAValue) -> int:
        if isinstance(value, OpResult):
            return segment_of(value.op)
        return self._first_users.get(value, 0)

    @cached_property
    def _first_users(self) -> dict[SSAValue, int]:
        segments: dict[SSAValue, int] = {}
        for op in self.view.ops:
            for value in op.args:
                if isinstance(value, BlockArgument):
                    segments.setdefault(value, segment_of(op))
        return segments

    @cached_property
    def _uses(self) -> list[tuple[tuple[SSAValue, ...], Rule]]:
        """The operands and results of every op, with its rule."""
        return [((*op.operands, *op.results), op.rule()) for op in self.view.ops]

    @cached_property
    def _parents(self) -> dict[Place, Place]:
        """A forest whose trees are the sets of dims that are tied."""
        parents: dict[Place, Place] = {}
        for values, rule in self._uses:
            for slots in _led(rule).values():
                first = _root(parents, (values[slots[0][0]], slots[0][1]))
                parents.setdefault(first, first)
                for position, dim in slots[1:]:
                    parents[_root(parents, (values[position], dim))] = first
        return parents

    @cached_property
    def _counts(self) -> dict[Place, int]:
        """The number of pieces of each set of tied dims, by the root of the set."""
        counts: dict[Place, int] = {}
        for values, rule in self._uses:
            for factor, slots in _led(rule).items():
                root = self._find((values[slots[0][0]], slots[0][1]))
                counts[root] = math.gcd(counts.get(root, 0), rule.sizes[factor])
        for item in self.view.inputs:
            if (pieces := argument_attribute(item.argument, PIECES)) is not None:
                for dim, count in enumerate(python_value(pieces)):
                    root = self._find((item.argument, dim))
                    counts[root] = math.gcd(counts.get(root, 0), count)
        return counts

    def _find(self, place: Place) -> Place:
        return _root(self._parents, place)


def _root(parents: dict[Place, Place], place: Place) -> Place:
    root = place
    while (above := parents.get(root, root)) is not root:
        root = above
    while (above := parents.get(place, root)) is not root:
        parents[place], place = root, above
    return root


_LED: dict[int, tuple[Rule, dict[str, Slots]]] = {}


def _led(rule: Rule) -> dict[str, Slots]:
    """Return the dims that each splittable factor leads; the cache keeps the rule alive, so its id stays unique."""
    if id(rule) not in _LED:
        places: dict[str, list[tuple[int, int]]] = {factor: [] for factor in rule.splittable()}
        for factor, slot in _leads(rule):
            if factor in places:
                places[factor].append(slot)
        _LED[id(rule)] = rule, {factor: tuple(slots) for factor, slots in places.items() if slots}
    return _LED[id(rule)][1]


def _leads(rule: Rule) -> Iterator[tuple[str, tuple[int, int]]]:
    for position, value in enumerate((*rule.operands, *rule.results)):
        for dim, factors in enumerate(value):
            if (lead := rule.leading(factors)) is not None:
                yield lead, (position, dim)
