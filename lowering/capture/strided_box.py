"""Find strided reads of a flat tensor that equal a box of a view of the tensor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StridedBox:
    """
    The elements of ``flat.view(shape)``, sliced to `parts`, with permuted dims.

    Args:
        shape: shape of the view.
        parts: dim of the view -> (start, stop) of its slice; other dims are taken whole.
        order: order of the view's dims in the result; further dims of the result have size 1.
    """

    shape: tuple[int, ...]
    parts: Mapping[int, tuple[int, int]]
    order: tuple[int, ...]


def find_box(total: int, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> StridedBox | None:
    """
    Return the box that ``as_strided(size, stride, offset)`` reads from a flat tensor of `total` elements, or None.

    Strides belong to a view if, sorted from the largest, the first divides `total` and each other divides its
    predecessor. Repeated elements and overlapping windows do not form a box.
    """
    # The stride of a dim of size 1 has no effect.
    wide = sorted((dim for dim in range(len(size)) if size[dim] != 1), key=lambda dim: -stride[dim])
    steps = [total, *(stride[dim] for dim in wide)]
    if 0 in (*size, *steps) or any(outer % inner for outer, inner in itertools.pairwise(steps)):
        return None
    counts, sizes = [outer // inner for outer, inner in itertools.pairwise(steps)], [size[dim] for dim in wide]
    if (last := steps[-1]) > 1:
        # The smallest stride skips elements, so the view has one more dim, and the box takes one element of it.
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
