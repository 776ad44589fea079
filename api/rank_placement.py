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

_NEVER = 2**50
"""What a pair costs that cannot be: more than the state of any step, in bytes."""


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
    By new rank the old one whose process takes it, so that most bytes are kept: an assignment problem. Of equally good
    pairs those of one number are taken.

    Args:
        kept: by new and old rank, the bytes that would stay.
        allowed: which pairs can be.
    """
    from ortools.graph.python.linear_sum_assignment import SimpleLinearSumAssignment

    joined, count = kept.shape
    size = max(joined, count)
    costs = np.zeros((size, size), np.int64)
    costs[:joined, :count] = np.where(allowed, -2 * kept - np.eye(joined, count, dtype=np.int64), _NEVER)
    rows, columns = np.divmod(np.arange(size * size), size)
    problem: Any = SimpleLinearSumAssignment()
    problem.add_arcs_with_cost(rows, columns, costs.ravel())
    status = problem.solve()
    assert status == problem.OPTIMAL, "every pair has an arc, so that there is an assignment"
    mates = ((rank, problem.right_mate(rank)) for rank in range(joined))
    return {rank: mate for rank, mate in mates if mate < count and allowed[rank, mate]}


def exchangeable(old: Cluster, new: Cluster) -> NDArray[np.bool_]:
    """By new and old rank, whether a process can take the place: on a device of the same kind, on the same host."""
    before = [(old.device(rank), _host(old, rank)) for rank in range(old.mesh.device_count)]
    after = [(new.device(rank), _host(new, rank)) for rank in range(new.mesh.device_count)]
    return np.array([[mine == other for other in before] for mine in after], bool)


def _host(cluster: Cluster, rank: int) -> int:
    """The number of the host of a rank; without a topology, devices along the last axis are on one."""
    if cluster.topology is not None:
        return cluster.topology.seat(rank).host
    sizes = [axis.size for axis in cluster.mesh.spatial]
    return rank // sizes[-1] if len(sizes) > 1 else 0
