"""
Where the rows of the batch are within a value, and how views reorder the value's elements.

A dim into which the batch was merged is a product `major x rows x minor`: merging `[time, batch]` gives 24 = 3 x 8 x 1.
Only the first factor of a dim can be split. A value is *batch-major* if the elements of that dim are in the order `rows
x major x minor`; the size of the dim is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...ir.rules import Rule, Value

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BatchPlace:
    """
    The dim of a value that contains the rows of the batch.

    Args:
        dim: index of the dim.
        rows: number of rows of the batch.
        major: number of consecutive groups in the dim; each group contains every row once.
        minor: number of consecutive elements of one row within a group.
    """

    dim: int
    rows: int
    major: int = 1
    minor: int = 1

    @property
    def is_merged(self) -> bool:
        """Whether another factor precedes the rows in their dim, so that the dim cannot be split along the rows."""
        return self.major > 1

    @property
    def block(self) -> int:
        """Number of elements of the dim that contain every row once."""
        return self.rows * self.minor

    def opened(self, shape: Shape) -> Shape:
        """Return `shape` with the dim divided into rows, major and minor; minor is omitted if it is 1."""
        inside = (self.rows, self.major, *((self.minor,) if self.minor > 1 else ()))
        return (*shape[: self.dim], *inside, *shape[self.dim + 1 :])

    def in_order(self, shape: Shape) -> Shape:
        """Return `shape` with the dim divided into its factors in their own order, without factors of size 1."""
        inside = (size for size in (self.major, self.rows, self.minor) if size > 1)
        return (*shape[: self.dim], *inside, *shape[self.dim + 1 :])

    def stride(self, shape: Shape) -> int:
        """Return the number of consecutive elements of one row within a group, in a value of `shape`."""
        return self.minor * math.prod(shape[self.dim + 1 :])


def place_in(shape: Shape, rows: int, stride: int) -> BatchPlace | None:
    """Return the place of rows of `stride` elements in a value of `shape`, or None if no dim contains them all."""
    inner = 1
    for dim in reversed(range(len(shape))):
        size = shape[dim]
        if stride >= inner and stride * rows <= inner * size:
            minor, odd = divmod(stride, inner)
            major, rest = divmod(size, minor * rows)
            return BatchPlace(dim, rows, major, minor) if not odd and not rest else None
        inner *= size
    return None


def factor_of(rule: Rule, operand: int, place: BatchPlace) -> tuple[str, BatchPlace] | None:
    """Return the factor of a rule that contains the rows of the batch, and their place in a dim of it alone."""
    before = 1
    for factor in rule.operands[operand][place.dim]:
        size = rule.sizes[factor]
        major, odd = divmod(place.major, before)
        if not odd and size % (block := place.rows * major) == 0:
            return factor, BatchPlace(0, place.rows, major, size // block)
        before *= size
    return None


def place_of(value: Value, rule: Rule, factor: str, within: BatchPlace) -> BatchPlace | None:
    """Return the place of the rows in an operand or result, or None if it lacks the factor that contains the rows."""
    for number, dim in enumerate(value):
        if factor in dim:
            at = dim.index(factor)
            before = math.prod(rule.sizes[other] for other in dim[:at])
            after = math.prod(rule.sizes[other] for other in dim[at + 1 :])
            return BatchPlace(number, within.rows, before * within.major, within.minor * after)
    return None


def stands_alone(rule: Rule, factor: str) -> bool:
    """Return whether a factor is the whole of every dim that contains it, so that its elements may be reordered."""
    dims = [dim for value in (*rule.operands, *rule.results) for dim in value if factor in dim]
    return all(math.prod(rule.sizes[name] for name in dim) == rule.sizes[factor] for dim in dims)


@dataclass(frozen=True)
class Regrouping:
    """A view, a permutation of its dims, and a view of the result; `order` is empty if nothing is permuted."""

    first: Shape
    order: tuple[int, ...]
    last: Shape

    @property
    def permuted(self) -> Shape:
        """Shape after the permutation, before the last view."""
        return tuple(self.first[dim] for dim in self.order)


def regrouping(
    source: Shape, target: Shape, stride: int, before: BatchPlace | None, after: BatchPlace | None, rows: int
) -> Regrouping | None:
    """
    Return how views turn a value of shape `source` into one of shape `target` with the same elements.

    Args:
        stride: number of consecutive elements of one row of the batch if both values were in their own order.
        before, after: place of the rows in a batch-major source or target, or None for a value in its own order.

    Returns:
        The regrouping, or None if the sizes have no common factors to regroup.
    """
    cuts = sorted({*_suffixes(source), *_suffixes(target), stride, stride * rows}, reverse=True)
    if 0 in cuts or any(a % b for a, b in pairwise(cuts)):
        return None
    start = {cut: index for index, cut in enumerate(cuts)}
    sizes = [a // b for a, b in pairwise(cuts)]
    batch = (start[stride * rows], start[stride])
    sources, targets = (_numbered(shape, start, place, batch) for shape, place in ((source, before), (target, after)))
    candidates = [_by_blocks(sources, targets, ends, sizes, source, target) for ends in ((), sources, targets)]
    return min(candidates, key=lambda views: (views.first != source) + (bool(views.order) and views.permuted != target))


Numbered = list[list[int]]
"""The indices of the factors in each dim; indices follow the elements' own order."""


def _suffixes(shape: Shape) -> list[int]:
    return [math.prod(shape[dim:]) for dim in range(len(shape) + 1)]


def _numbered(shape: Shape, start: dict[int, int], place: BatchPlace | None, batch: tuple[int, int]) -> Numbered:
    numbers = [list(range(start[a], start[b])) for a, b in pairwise(_suffixes(shape))]
    if place is not None:
        rows = [number for number in numbers[place.dim] if batch[0] <= number < batch[1]]
        numbers[place.dim] = [*rows, *(number for number in numbers[place.dim] if number not in rows)]
    return numbers


def _by_blocks(
    sources: Numbered, targets: Numbered, ends: Iterable[Sequence[int]], sizes: list[int], source: Shape, target: Shape
) -> Regrouping:
    """Regroup by the longest blocks of factors that stay together, also cut where a dim of `ends` ends."""
    first, last = ([factor for dim in dims for factor in dim] for dims in (sources, targets))
    next_in_last = dict(zip(last, [*last[1:], -1], strict=True))
    ending = {dim[-1] for dim in ends if dim}
    blocks: list[list[int]] = []
    for index, factor in enumerate(first):
        joined = index > 0 and next_in_last[first[index - 1]] == factor and first[index - 1] not in ending
        if joined:
            blocks[-1].append(factor)
        else:
            blocks.append([factor])
    order = tuple(sorted(range(len(blocks)), key=lambda block: last.index(blocks[block][0])))
    if order == tuple(range(len(order))):
        return Regrouping(source, (), target)
    shape = tuple(math.prod(sizes[factor] for factor in block) for block in blocks)
    return Regrouping(shape, order, target)
