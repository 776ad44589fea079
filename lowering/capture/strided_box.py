"""Which strided reads of a flat tensor are boxes of a view of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StridedBox:
    """
    Elements of a flat tensor that are ``flat.view(shape)``, cut to `parts`, with its dims permuted.

    Args:
        shape: of the view.
        parts: by dim of the view that is not taken whole, where its part starts and stops.
        order: of the dims of the view in the result, which has others of one element.
    """

    shape: tuple[int, ...]
    parts: Mapping[int, tuple[int, int]]
    order: tuple[int, ...]


def find_box(total: int, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> StridedBox | None:
    """
    The box that ``as_strided(size, stride, offset)`` of a flat tensor of `total` elements takes; None where it is none.

    The strides, from the largest, have to divide one another and `total`: then they are those of a view. Elements that
    are repeated, or in windows that overlap, are no box.
    """
    # A dim of one element has no place in memory.
    wide = sorted((dim for dim in range(len(size)) if size[dim] != 1), key=lambda dim: -stride[dim])
    steps = [total, *(stride[dim] for dim in wide)]
    if 0 in (*size, *steps) or any(outer % inner for outer, inner in itertools.pairwise(steps)):
        return None
    counts, sizes = [outer // inner for outer, inner in itertools.pairwise(steps)], [size[dim] for dim in wide]
    if (last := steps[-1]) > 1:
        # Of the elements between two that are taken, one is.
        counts, sizes, steps = [*counts, last], [*sizes, 1], [*steps, 1]
    parts, rest = dict[int, tuple[int, int]](), offset or 0
    for dim, (count, taken, step) in enumerate(zip(counts, sizes, steps[1:], strict=True)):
        start, rest = divmod(rest, step)
        if start + taken > count:
            return None
        if taken != count:
            parts[dim] = (start, start + taken)
    order = (*(wide.index(dim) for dim in sorted(wide)), *range(len(wide), len(counts)))
    return StridedBox(tuple(counts), parts, order)
