"""
Where the rows of the batch are within a value, and how its elements are brought into another order by views.

A dim that the batch was merged into is a product `major x rows x minor`: of `[time, batch]` merged, 24 = 3 x 8 x 1.
Only the first factor of a dim can be split. A value is *batch-major* if that dim is in the order `rows x major x
minor`: of the same size, its elements in another order.
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
    The dim of a value that has the rows of the batch.

    Args:
        dim: its number.
        rows: of the batch.
        major: how often all of the rows come within the dim, one after the other.
        minor: how many elements of the dim come within each row of each time.
    """

    dim: int
    rows: int
    major: int = 1
    minor: int = 1

    @property
    def is_merged(self) -> bool:
        """Whether something comes before the rows in their dim, so that it cannot be split along them."""
        return self.major > 1

    @property
    def block(self) -> int:
        """How many elements of the dim have all rows once."""
        return self.rows * self.minor

    def opened(self, shape: Shape) -> Shape:
        """`shape` with the dim as three: rows, major, minor; without the last where that is 1."""
        inside = (self.rows, self.major, *((self.minor,) if self.minor > 1 else ()))
        return (*shape[: self.dim], *inside, *shape[self.dim + 1 :])

    def in_order(self, shape: Shape) -> Shape:
        """`shape` with the dim as the factors that it has in its own order, as far as they are of several elements."""
        inside = (size for size in (self.major, self.rows, self.minor) if size > 1)
        return (*shape[: self.dim], *inside, *shape[self.dim + 1 :])

    def stride(self, shape: Shape) -> int:
        """How many elements of a value of `shape` come within each row of each time."""
        return self.minor * math.prod(shape[self.dim + 1 :])


def place_in(shape: Shape, rows: int, stride: int) -> BatchPlace | None:
    """Where rows of `stride` elements are in a value of `shape`; None if no dim has all of them."""
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
    """The factor of a rule that has the rows of the batch, and where they are in it (as in its only dim)."""
    before = 1
    for factor in rule.operands[operand][place.dim]:
        size = rule.sizes[factor]
        major, odd = divmod(place.major, before)
        if not odd and size % (block := place.rows * major) == 0:
            return factor, BatchPlace(0, place.rows, major, size // block)
        before *= size
    return None


def place_of(value: Value, rule: Rule, factor: str, within: BatchPlace) -> BatchPlace | None:
    """Where the rows of the batch are in an operand or result, if a factor has them; None where it lacks that."""
    for number, dim in enumerate(value):
        if factor in dim:
            at = dim.index(factor)
            before = math.prod(rule.sizes[each] for each in dim[:at])
            after = math.prod(rule.sizes[each] for each in dim[at + 1 :])
            return BatchPlace(number, within.rows, before * within.major, within.minor * after)
    return None


def stands_alone(rule: Rule, factor: str) -> bool:
    """Whether a factor is all of every dim that it is in, so that its elements may come in any order."""
    dims = [dim for value in (*rule.operands, *rule.results) for dim in value if factor in dim]
    return all(math.prod(rule.sizes[each] for each in dim) == rule.sizes[factor] for dim in dims)


@dataclass(frozen=True)
class Regrouping:
    """A view of other sizes, a permutation of its dims, and a view of that; `order` is empty where it is the same."""

    first: Shape
    order: tuple[int, ...]
    last: Shape

    @property
    def permuted(self) -> Shape:
        """The shape between the permutation and the last view."""
        return tuple(self.first[dim] for dim in self.order)


def regrouping(
    source: Shape, target: Shape, stride: int, before: BatchPlace | None, after: BatchPlace | None, rows: int
) -> Regrouping | None:
    """
    How a value of the shape `source` becomes one of the shape `target` that has the same elements.

    Args:
        stride: how many elements come within each row of the batch, were both in their own order.
        before, after: where the rows are, in a source or target that is batch-major; None where it is in its own order.

    Returns:
        None where the sizes have no factors in common that it could be done by.
    """
    cuts = sorted({*_suffixes(source), *_suffixes(target), stride, stride * rows}, reverse=True)
    if 0 in cuts or any(a % b for a, b in pairwise(cuts)):
        return None
    start = {cut: index for index, cut in enumerate(cuts)}
    sizes = [a // b for a, b in pairwise(cuts)]
    batch = (start[stride * rows], start[stride])
    sources, targets = (_numbered(shape, start, place, batch) for shape, place in ((source, before), (target, after)))
    found = [_by_blocks(sources, targets, ends, sizes, source, target) for ends in ((), sources, targets)]
    return min(found, key=lambda each: (each.first != source) + (bool(each.order) and each.permuted != target))


Numbered = list[list[int]]
"""Per dim, the factors in it by number; numbers follow the elements' own order."""


def _suffixes(shape: Shape) -> list[int]:
    return [math.prod(shape[dim:]) for dim in range(len(shape) + 1)]


def _numbered(shape: Shape, start: dict[int, int], place: BatchPlace | None, batch: tuple[int, int]) -> Numbered:
    ends = _suffixes(shape)
    found = [list(range(start[a], start[b])) for a, b in pairwise(ends)]
    if place is not None:
        rows = [each for each in found[place.dim] if batch[0] <= each < batch[1]]
        found[place.dim] = [*rows, *(each for each in found[place.dim] if each not in rows)]
    return found


def _by_blocks(
    sources: Numbered, targets: Numbered, ends: Iterable[Sequence[int]], sizes: list[int], source: Shape, target: Shape
) -> Regrouping:
    """By the longest blocks of factors that stay together, cut where the dims of `ends` end too."""
    first, last = ([each for dim in dims for each in dim] for dims in (sources, targets))
    next_in_last = dict(zip(last, [*last[1:], -1], strict=True))
    ending = {dim[-1] for dim in ends if dim}
    blocks: list[list[int]] = []
    for index, each in enumerate(first):
        joined = index > 0 and next_in_last[first[index - 1]] == each and first[index - 1] not in ending
        if joined:
            blocks[-1].append(each)
        else:
            blocks.append([each])
    order = tuple(sorted(range(len(blocks)), key=lambda block: last.index(blocks[block][0])))
    if order == tuple(range(len(order))):
        return Regrouping(source, (), target)
    shape = tuple(math.prod(sizes[each] for each in block) for block in blocks)
    return Regrouping(shape, order, target)
