"""
The ops that work on lists of the rows of the batch, each list for itself: made by `sort-within-rows`, and told by
`sort-across-rows` that a list is of several rows.

A list op has values ``[b, n, ...]``, of each of b rows of the batch n elements, or counts ``[b, groups]``. With d lists
instead of b they are ``[d, b / d * n, ...]`` and ``[d, groups]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ListOp:
    """
    What of a list op depends on how many lists there are.

    Args:
        operands, results: those that are lists, or counts, by index.
        counts: whether the results are counts.
        taken: the operands that are counts, by index.
        length: the argument that is a number of elements of a list.
        size: the argument that is the shape of the result.
    """

    operands: tuple[int, ...] = (0,)
    results: tuple[int, ...] = (0,)
    counts: bool = False
    taken: tuple[int, ...] = ()
    length: str = ""
    size: str = ""


LIST_OPS: Mapping[str, ListOp] = {
    "sort": ListOp(results=(0, 1)),
    "sort.stable": ListOp(results=(0, 1)),
    "argsort": ListOp(),
    "remainder.Scalar": ListOp((), (), length="other"),
    "take_rows": ListOp((0, 1)),
    "add_rows": ListOp((0, 1), length="size"),
    "gather": ListOp((0, 1)),
    "scatter.src": ListOp((0, 1, 2)),
    "scatter_add": ListOp((0, 1, 2)),
    "expand": ListOp(size="size"),
    "eq.Tensor": ListOp(),
    "sum.dim_IntList": ListOp(counts=True),
    "cumsum": ListOp(counts=True, taken=(0,)),
    "grouped_bmm": ListOp((0, 2), taken=(2,)),
    "grouped_bmm_backward": ListOp((0, 2, 3), taken=(2,)),
}
"""By overload; an op of these that was made for it has the attribute `train.by_row`."""
