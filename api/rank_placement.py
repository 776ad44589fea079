"""Assigning the processes of an old plan to the ranks of a new one, so that the least state is moved."""

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
    """By new rank (of `joined`) and old rank (of `count`), the bytes that the one needs and the other has."""
    sources = {value.name: value for value in old}
    found = np.zeros((joined, count), np.int64)
    known: dict[tuple[int, int], Bytes] = {}
    for value in new:
        if (source := sources.get(value.name)) is None:
            continue
        # Values of one shape and sharding share their boxes.
        key = id(source.boxes), id(value.boxes)
        if key not in known:
            known[key] = _overlaps(source.boxes, value.boxes, count, joined)
        found += known[key] * value.element
    return found


def _overlaps(old: Mapping[int, Box], new: Mapping[int, Box], count: int, joined: int) -> Bytes:
    """By new and old rank, how many elements of a value both have."""
    found = np.zeros((joined, count), np.int64)
    volumes: dict[tuple[Box, Box], int] = {}
    for rank, needed in new.items():
        for other, box in old.items():
            if (pair := (needed, box)) not in volumes:
                sides = (min(p[1], q[1]) - max(p[0], q[0]) for p, q in zip(needed, box, strict=True))
                volumes[pair] = math.prod(max(0, side) for side in sides)
            found[rank, other] = volumes[pair]
    return found


def best_ranks(kept: Bytes, allowed: NDArray[np.bool_]) -> dict[int, int]:
    """
    Return, by new rank, the old rank whose process takes it, so that most bytes are kept: an assignment problem.

    The assignment has as many pairs as possible, and prefers pairs of equal ranks among equally good ones.

    Args:
        kept: by new and old rank, the bytes that would stay.
        allowed: which pairs can be; ranks on the same host and device kind are interchangeable.
    """
    from ortools.graph.python.linear_sum_assignment import SimpleLinearSumAssignment

    joined, count = kept.shape
    new, old = np.nonzero(allowed)
    gains = 4 * kept[new, old] + np.where(new == old, 2, 1)
    ranks, others = np.arange(joined), np.arange(count)
    # Each new rank has a column for the case that it gets no process, and each old rank a row for the case that it
    # leaves. Where two ranks are matched, the row of the one and the column of the other are matched, too.
    rows = np.concatenate([new, ranks, joined + others, joined + old])
    columns = np.concatenate([old, count + ranks, others, count + new])
    costs = np.zeros(len(rows), np.int64)
    costs[: len(new)] = -gains
    problem: Any = SimpleLinearSumAssignment()
    problem.add_arcs_with_cost(rows, columns, costs)
    status = problem.solve()
    assert status == problem.OPTIMAL, "nobody needs to be matched, so that there is an assignment"
    mates = ((rank, problem.right_mate(rank)) for rank in range(joined))
    return {rank: mate for rank, mate in mates if mate < count}


def exchangeable(old: Cluster, new: Cluster) -> NDArray[np.bool_]:
    """By new and old rank, whether a process can take the place: on a device of the same kind, on the same host."""
    before = [(old.device(rank), old.host(rank)) for rank in range(old.mesh.device_count)]
    after = [(new.device(rank), new.host(rank)) for rank in range(new.mesh.device_count)]
    return np.array([[mine == other for other in before] for mine in after], bool)
