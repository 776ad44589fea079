"""
Which dims of a step are split together, and into how many pieces that must stay whole.

Offsets belong to factors. An op that splits a factor splits every dim which that factor leads, so such dims have
their boundaries in common; so do the dims of one value in all its uses. A dim that is a product, the 42 of a
6x7, can then split only where its leading factor does. Over a set of dims that are tied so, the number of pieces is
the greatest common divisor of the sizes of the factors that lead them: in every one of these dims, a part of as many
pieces is a whole number of elements of every factor.
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
    """How the values and ops of one step are divided, by the ratios of their segments."""

    view: StepView
    ratios: Mapping[int, Ratios]
    _known: dict[SSAValue, Splits] = field(default_factory=dict[SSAValue, Splits], init=False, repr=False)

    def of_op(self, op: ComputeOp) -> Splits:
        """How the factors of an op's rule are divided."""
        values, counts, rule = (*op.operands, *op.results), dict[str, int](), op.rule()
        for factor, slots in _led(rule).items():
            position, dim = slots[0]
            counts[factor] = self._counts[self._find((values[position], dim))]
        return factor_splits(rule, counts, self.ratios_of(segment_of(op)))

    def of_value(self, value: SSAValue) -> Splits:
        """How the dims of a value are divided, where it is made; for an argument, by its first user's ratios."""
        if (known := self._known.get(value)) is None:
            known = self._known[value] = self._of_value(value)
        return known

    def _of_value(self, value: SSAValue) -> Splits:
        shape = shape_of(value)
        counts = (self._counts.get(self._find((value, dim)), size) for dim, size in enumerate(shape))
        return Splits(shape, tuple(counts), self.ratios_of(self._segment(value)))

    def ratios_of(self, segment: int) -> Ratios:
        """The ratios of a segment; those of segment 0 where it has none of its own."""
        return self.ratios.get(segment, self.ratios[0])

    def _segment(self, value: SSAValue) -> int:
        if isinstance(value, OpResult):
            return segment_of(value.op)
        return self._first_users.get(value, 0)

    @cached_property
    def _first_users(self) -> dict[SSAValue, int]:
        found: dict[SSAValue, int] = {}
        for op in self.view.ops:
            for value in op.args:
                if isinstance(value, BlockArgument):
                    found.setdefault(value, segment_of(op))
        return found

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
        """By the root of each set, the number of pieces."""
        counts: dict[Place, int] = {}
        for values, rule in self._uses:
            for factor, slots in _led(rule).items():
                root = self._find((values[slots[0][0]], slots[0][1]))
                counts[root] = math.gcd(counts.get(root, 0), rule.sizes[factor])
        for given in self.view.inputs:
            if (pieces := argument_attribute(given.argument, PIECES)) is not None:
                for dim, count in enumerate(python_value(pieces)):
                    root = self._find((given.argument, dim))
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
    """By factor that may be split, where it leads a dim; found once per rule, which is kept alive."""
    if id(rule) not in _LED:
        found: dict[str, list[tuple[int, int]]] = {factor: [] for factor in rule.splittable()}
        for factor, slot in _leads(rule):
            if factor in found:
                found[factor].append(slot)
        _LED[id(rule)] = rule, {factor: tuple(slots) for factor, slots in found.items() if slots}
    return _LED[id(rule)][1]


def _leads(rule: Rule) -> Iterator[tuple[str, tuple[int, int]]]:
    for position, value in enumerate((*rule.operands, *rule.results)):
        for dim, factors in enumerate(value):
            if (lead := rule.leading(factors)) is not None:
                yield lead, (position, dim)
