"""Processes take the ranks of a new plan that move the fewest bytes."""

import itertools
import random

import numpy as np
import pytest

from shardwright.api.replan import best_ranks, exchangeable, kept_bytes
from shardwright.ir.cluster_file import parse_cluster, shipped_clusters
from shardwright.ir.state_moves import SpreadState, state_moves


@pytest.mark.parametrize("seed", range(12))
def test_no_other_placement_moves_less(seed: int):
    draw = random.Random(seed)
    old_count, new_count = draw.choice([(4, 3), (3, 4), (4, 4), (5, 2)])

    def spreads(count: int) -> list[SpreadState]:
        found: list[SpreadState] = []
        for name, size in (("a", 24), ("b", 13), ("c", 7)):
            cuts = [0, *sorted(draw.randrange(size + 1) for _ in range(count - 1)), size]
            parts = list(itertools.pairwise(cuts))
            draw.shuffle(parts)
            whole = draw.random() < 0.3
            boxes = {rank: ((0, size),) if whole else (part,) for rank, part in enumerate(parts)}
            found.append(SpreadState(name, boxes, draw.choice([1, 4])))
        return found

    old, new = spreads(old_count), spreads(new_count)
    kept = kept_bytes(old, new, old_count, new_count)
    found = best_ranks(kept, np.ones((new_count, old_count), bool))

    going_on = min(old_count, new_count)
    orders = itertools.permutations(range(old_count), going_on)
    places = list(itertools.combinations(range(new_count), going_on))
    every = [dict(zip(place, order, strict=True)) for order in orders for place in places]
    least = min(state_moves(old, new, each).bound for each in every)
    assert len(found) == going_on
    assert len(set(found.values())) == going_on
    assert state_moves(old, new, found).bound == least


def test_a_process_stays_on_its_kind_of_device():
    mixed, even = (parse_cluster(shipped_clusters()[name]) for name in ("mixed-4", "local-4"))
    allowed = exchangeable(mixed, mixed)
    slow = [rank for rank in range(4) if mixed.device(rank) != mixed.device(0)]
    assert slow
    assert all(bool(allowed[i, j]) == ((i in slow) == (j in slow)) for i in range(4) for j in range(4))
    assert exchangeable(even, even).all()
    # Another order would keep everything, but the kinds of devices do not allow it.
    kept = np.roll(np.eye(4, dtype=np.int64) * 100, 1, axis=1)
    found = best_ranks(kept, allowed)
    assert all((new in slow) == (old in slow) for new, old in found.items())


def test_large_byte_counts_do_not_overflow():
    # 64 ranks with 500 MB each made the costs of the solver overflow.
    size = 500_000_000
    kept = np.full((56, 64), size, dtype=np.int64)
    found = best_ranks(kept, np.kron(np.eye(8), np.ones((8, 8)))[:56].astype(bool))

    assert found == {rank: rank for rank in range(56)}
