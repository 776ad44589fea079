"""Assignment of the processes of an old plan to the ranks of a new one, so that the least state is moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.cluster import Cluster
from ..ir.state_moves import Box, SpreadState

Bytes = NDArray[np.int64]


def kept_bytes(old: Sequence[SpreadState], new: Sequence[SpreadState], count: int, joined: int) -> Bytes:
    """Return, by new rank (of `joined`) and old rank (of `count`), the needed bytes that the old rank has."""
    sources = {value.name: value for value in old}
    total = np.zeros((joined, count), np.int64)
    overlaps: dict[tuple[int, int], Bytes] = {}
    for value in new:
        if (source := sources.get(value.name)) is None:
            continue
        # Values with the same shape and sharding share one `boxes` object.
        key = id(source.boxes), id(value.boxes)
        if key not in overlaps:
            overlaps[key] = _overlaps(source.boxes, value.boxes, count, joined)
        total += overlaps[key] * value.element
    return total


def _overlaps(old: Mapping[int, Box], new: Mapping[int, Box], count: int, joined: int) -> Bytes:
    """Return, by new and old rank, the number of elements of a value that both have."""
    elements = np.zeros((joined, count), np.int64)
    volumes: dict[tuple[Box, Box], int] = {}
    for rank, needed in new.items():
        for other, box in old.items():
            if (pair := (needed, box)) not in volumes:
                sides = (min(p[1], q[1]) - max(p[0], q[0]) for p, q in zip(needed, box, strict=True))
                volumes[pair] = math.prod(max(0, side) for side in sides)
            elements[rank, other] = volumes[pair]
    return elements


def best_ranks(kept: Bytes, allowed: NDArray[np.bool_]) -> dict[int, int]:
    """
    Return, by new rank, the old rank whose process takes it, so that most bytes are kept: an assignment problem.

    The assignment has as many pairs as possible, and prefers pairs of equal ranks among equally good ones.

    Args:
        kept: by new and old rank, the bytes that would stay.
        allowed: the possible pairs; ranks on the same host and device kind are interchangeable.
    """
    from ortools.graph.python.linear_sum_assignment import SimpleLinearSumAssignment

    joined, count = kept.shape
    new, old = np.nonzero(allowed)
    gains = 4 * kept[new, old] + np.where(new == old, 2, 1)
    ranks, others = np.arange(joined), np.arange(count)
    # Each new rank has a column for the case that it gets no process, and each old rank a row for the case that it
    # leaves. If two ranks are matched, then so are the extra row of the old rank and the extra column of the new one.
    rows = np.concatenate([new, ranks, joined + others, joined + old])
    columns = np.concatenate([old, count + ranks, others, count + new])
    costs = np.zeros(len(rows), np.int64)
    costs[: len(new)] = -gains
    problem: Any = SimpleLinearSumAssignment()
    problem.add_arcs_with_cost(rows, columns, costs)
    status = problem.solve()
    assert status == problem.OPTIMAL, "the assignment without any match is always feasible"
    mates = ((rank, problem.right_mate(rank)) for rank in range(joined))
    return {rank: mate for rank, mate in mates if mate < count}


def exchangeable(old: Cluster, new: Cluster) -> NDArray[np.bool_]:
    """Return, by new and old rank, whether a process can take the place: same device kind, same host."""
    before = [(old.device(rank), old.host(rank)) for rank in range(old.mesh.device_count)]
    after = [(new.device(rank), new.host(rank)) for rank in range(new.mesh.device_count)]
    return np.array([[mine == other for other in before] for mine in after], bool)
